{{- define "encoder-operator.chart-name" -}}
{{- .Values.nameOverride | default .Chart.Name }}
{{- end }}

{{/* The release's name, with the chart's name unless it contains that. */}}
{{- define "encoder-operator.name" -}}
{{- $chart := include "encoder-operator.chart-name" . -}}
{{- $whole := ternary .Release.Name (printf "%s-%s" .Release.Name $chart) (contains $chart .Release.Name) -}}
{{- $whole | trunc 50 | trimAll "-." }}
{{- end }}

{{/* The name of the Service for metrics: unlike a release, a Service may not have a name that starts with a digit or contains dots. */}}
{{- define "encoder-operator.metrics-service" -}}
{{- printf "%s-metrics" (regexReplaceAll "^([0-9])" (include "encoder-operator.name" . | replace "." "-") "release-${1}" | trunc 55 | trimSuffix "-") }}
{{- end }}

{{- define "encoder-operator.account" -}}
{{- if and (not .Values.serviceAccount.create) (not .Values.serviceAccount.name) }}{{ fail "serviceAccount.name is required because serviceAccount.create is false" }}{{ end -}}
{{- .Values.serviceAccount.name | default (include "encoder-operator.name" .) }}
{{- end }}

{{/* The operator's user name in requests to the API server. */}}
{{- define "encoder-operator.user" -}}
system:serviceaccount:{{ .Release.Namespace }}:{{ include "encoder-operator.account" . }}
{{- end }}

{{- define "encoder-operator.selector" -}}
app.kubernetes.io/name: {{ include "encoder-operator.chart-name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "encoder-operator.labels" -}}
{{ include "encoder-operator.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{/* Whether leader election is enabled: "true" or nothing. */}}
{{- define "encoder-operator.elects" -}}
{{- if or .Values.leaderElection.enabled (gt (int .Values.replicas) 1) }}true{{ end }}
{{- end }}

{{/* The namespace in which `helm test` creates its EncoderModel. */}}
{{- define "encoder-operator.test-namespace" -}}
{{- if and .Values.watch.namespaceSelector .Values.test.model (not .Values.test.namespace) }}{{ fail "test.namespace is empty: with watch.namespaceSelector and test.model, set it to a namespace that matches" }}{{ end -}}
{{- if .Values.test.namespace }}{{ .Values.test.namespace }}{{ else if .Values.watch.namespaces }}{{ first .Values.watch.namespaces }}{{ else }}{{ .Release.Namespace }}{{ end }}
{{- end }}

{{/* An image reference. Takes a dict of root, image, repository and tag (the defaults). A digest takes precedence over a tag. */}}
{{- define "encoder-operator.reference" -}}
{{- $repository := .image.repository | default .repository -}}
{{- if and .root.Values.imageRegistry (eq $repository .repository) }}{{ $repository = printf "%s/%s" (trimSuffix "/" .root.Values.imageRegistry) $repository }}{{ end -}}
{{- if contains "://" $repository }}{{ fail (printf "%s is not the name of an image, which has no scheme: set imageRegistry and the repository of images without https://" $repository) }}{{ end -}}
{{- if .image.digest }}{{ printf "%s@%s" $repository .image.digest }}{{ else }}{{ printf "%s:%s" $repository (.image.tag | default .tag) }}{{ end }}
{{- end }}

{{- define "encoder-operator.image" -}}
{{- if not (or .Values.imageRegistry .Values.localImages) }}{{ fail "imageRegistry is empty: set it to the registry that has the images of this release, or set localImages to true if every node has them already" }}{{ end -}}
{{ include "encoder-operator.reference" (dict "root" . "image" .Values.image "repository" "encoder-operator/operator" "tag" .Chart.AppVersion) }}
{{- end }}

{{/* Images of one kind for every plugin, as JSON. Takes a dict of root, given (by plugin), prefix, tag, and the value's name. */}}
{{- define "encoder-operator.by-plugin" -}}
{{- $plugins := .root.Files.Get "files/plugins.yaml" | fromYamlArray -}}
{{- range $plugin, $_ := .given }}
  {{- if not (has $plugin $plugins) }}{{ fail (printf "%s.%s: unknown plugin; the plugins are: %s" $.name $plugin (join ", " $plugins)) }}{{ end }}
{{- end -}}
{{- $found := dict -}}
{{- range $plugin := $plugins -}}
  {{- $image := get $.given $plugin | default dict -}}
  {{- $_ := set $found $plugin (include "encoder-operator.reference" (dict "root" $.root "image" $image "repository" (printf "encoder-operator/%s-%s" $.prefix $plugin) "tag" $.tag)) -}}
{{- end -}}
{{- $found | toJson }}
{{- end }}

{{/* All images as JSON for the operator. */}}
{{- define "encoder-operator.images" -}}
{{- $version := .Chart.AppVersion -}}
{{- $cpu := include "encoder-operator.by-plugin" (dict "root" . "given" (.Values.engines.cpu | default dict) "prefix" "engine" "tag" (printf "%s-cpu" $version) "name" "engines.cpu") | fromJson -}}
{{- $cuda := include "encoder-operator.by-plugin" (dict "root" . "given" (.Values.engines.cuda | default dict) "prefix" "engine" "tag" (printf "%s-cuda" $version) "name" "engines.cuda") | fromJson -}}
{{- $preps := include "encoder-operator.by-plugin" (dict "root" . "given" (.Values.preps | default dict) "prefix" "prep" "tag" $version "name" "preps") | fromJson -}}
{{- dict "operator" (include "encoder-operator.image" .) "engine" (dict "cpu" $cpu "nvidia" $cuda) "prep" $preps "pullPolicy" .Values.imagePullPolicy | toJson }}
{{- end }}

{{/* The limits of automatic updates as JSON for the operator, which does not start with a window that has no end. */}}
{{- define "encoder-operator.updates" -}}
{{- $window := dig "window" dict (.Values.updates | default dict) | default dict -}}
{{- if ne (empty $window.start) (empty $window.end) }}{{ fail "updates.window: set both start and end, or neither" }}{{ end -}}
{{- if and $window.start (eq $window.start $window.end) }}{{ fail "updates.window: start and end must differ; without them, the window is always open" }}{{ end -}}
{{- .Values.updates | default dict | toJson }}
{{- end }}

{{/* Whether the platform sets users and groups of pods; empty if not. */}}
{{- define "encoder-operator.platform-assigns-users" -}}
{{- $wanted := toString .Values.platform.assignsUsers -}}
{{- if or (eq $wanted "true") (and (eq $wanted "auto") (.Capabilities.APIVersions.Has "security.openshift.io/v1")) }}true{{ end -}}
{{- end }}

{{/* Security contexts of every pod of this chart, as the restricted Pod Security Standard requires. */}}
{{- define "encoder-operator.pod-security" -}}
runAsNonRoot: true
{{- if not (include "encoder-operator.platform-assigns-users" .) }}
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
{{- end }}
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "encoder-operator.container-security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities:
  drop: [ALL]
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{/* A whole number, or nothing for null. Helm reads a number as one with a fraction, and prints a large one as 1e+06. */}}
{{- define "encoder-operator.integer" -}}
{{- if not (kindIs "invalid" .) }}{{ int64 . }}{{ end -}}
{{- end }}

{{/* Environment variables of every pod that runs the operator's program. */}}
{{- define "encoder-operator.environment" -}}
{{- $names := list -}}
{{- range .Values.extraEnv }}
  {{- if has .name $names }}{{ fail (printf "extraEnv has %s twice" .name) }}{{ end }}
  {{- $names = append $names .name }}
{{- end -}}
{{- if and .Values.watch.namespaces .Values.watch.namespaceSelector }}{{ fail "watch.namespaces and watch.namespaceSelector exclude each other: set one of them" }}{{ end -}}
- name: HOME
  value: /tmp
# the uid has no entry in /etc/passwd
- name: LOGNAME
  value: encoder
- name: ENCODER_IMAGES
  value: {{ include "encoder-operator.images" . | quote }}
- name: ENCODER_NAMESPACES
  value: {{ .Values.watch.namespaces | default list | toJson | quote }}
- name: ENCODER_NAMESPACE_SELECTOR
  value: {{ .Values.watch.namespaceSelector | default dict | toJson | quote }}
- name: ENCODER_FIXED_USER
  value: {{ not (include "encoder-operator.platform-assigns-users" .) | quote }}
- name: ENCODER_LOG_LEVEL
  value: {{ .Values.settings.logLevel | quote }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The binding of a policy to the namespaces that this release serves. Takes a dict of root and name. */}}
{{- define "encoder-operator.policy-binding" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ .name }}
  labels:
    {{- include "encoder-operator.labels" .root | nindent 4 }}
spec:
  policyName: {{ .name }}
  validationActions: [Deny]
  {{- with .root.Values.watch.namespaces }}
  # another release with another service account may serve the other namespaces
  matchResources:
    namespaceSelector:
      matchExpressions:
        - key: kubernetes.io/metadata.name
          operator: In
          values:
            {{- toYaml . | nindent 12 }}
  {{- end }}
  {{- with .root.Values.watch.namespaceSelector }}
  # another release may serve the other namespaces, with a service account that these policies do not know. So the policies do not
  # protect the objects of a namespace while its labels do not match (docs/security.md)
  matchResources:
    namespaceSelector:
      {{- toYaml . | nindent 6 }}
  {{- end }}
{{- end }}

{{/* CEL: whether the user is a controller of Kubernetes, a kubelet, in system:masters, or in gatePolicy.trustedControllers. */}}
{{- define "encoder-operator.trusted" -}}
request.userInfo.username.startsWith('system:serviceaccount:kube-system:')
|| request.userInfo.username in [{{ range $i, $user := concat (list "system:kube-controller-manager" "system:kube-scheduler") (.Values.gatePolicy.trustedControllers | default list) }}{{ if $i }}, {{ end }}'{{ $user }}'{{ end }}]
|| request.userInfo.?groups.orValue([]).exists(g, g in ['system:masters', 'system:nodes'])
{{- end }}
