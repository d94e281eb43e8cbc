{{/* The release's name, unless it already says what this is. */}}
{{- define "encoder-operator.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 63 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 63 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "encoder-operator.account" -}}
{{- .Values.serviceAccount.name | default (include "encoder-operator.name" .) }}
{{- end }}

{{- define "encoder-operator.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "encoder-operator.labels" -}}
{{ include "encoder-operator.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{/* One image reference. Takes a dict of image, repository and tag (the defaults). A digest wins over a tag. */}}
{{- define "encoder-operator.reference" -}}
{{- $repository := .image.repository | default .repository -}}
{{- if .image.digest }}{{ printf "%s@%s" $repository .image.digest }}{{ else }}{{ printf "%s:%s" $repository (.image.tag | default .tag) }}{{ end }}
{{- end }}

{{/* Every image, as JSON that the operator reads. */}}
{{- define "encoder-operator.images" -}}
{{- $version := .Chart.AppVersion -}}
{{- $engines := dict -}}
{{- range $build, $accelerator := dict "cpu" "cpu" "cuda" "nvidia" -}}
  {{- $found := dict -}}
  {{- range $plugin, $image := index $.Values.engines $build -}}
    {{- $_ := set $found $plugin (include "encoder-operator.reference" (dict "image" $image "repository" (printf "encoder-operator/engine-%s" $plugin) "tag" (printf "%s-%s" $version $build))) -}}
  {{- end -}}
  {{- $_ := set $engines $accelerator $found -}}
{{- end -}}
{{- $preps := dict -}}
{{- range $plugin, $image := .Values.preps -}}
  {{- $_ := set $preps $plugin (include "encoder-operator.reference" (dict "image" $image "repository" (printf "encoder-operator/prep-%s" $plugin) "tag" $version)) -}}
{{- end -}}
{{- dict "operator" (include "encoder-operator.reference" (dict "image" .Values.image "repository" "encoder-operator/operator" "tag" $version)) "engine" $engines "prep" $preps "pullPolicy" .Values.imagePullPolicy | toJson }}
{{- end }}
