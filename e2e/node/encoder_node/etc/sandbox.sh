#!/bin/bash
# The node's namespaces, made in three stages that run one another. PID 1 of the node is the last one.
#   sandbox.sh launch  NODE NAME ENTRANCE...   joins the control groups, waits for leave to go on
#   sandbox.sh isolate NODE NAME               has a control group namespace; makes the other namespaces
#   sandbox.sh init    NODE NAME               furnishes them, says "ready", collects dead processes
# NODE is the folder of the node's state, ENTRANCE a cgroup.procs file.
set -euo pipefail
stage=$1 node=$2 name=$3

launch() {
  for entrance in "$@"; do echo $$ > "$entrance"; done
  # whoever started this writes a line once it has recorded the process; if it dies before, so does this
  read -r -t 30 _
  exec unshare --cgroup bash "$0" isolate "$node" "$name" < /dev/null
}

isolate() {
  # cgroup v2: this namespace's root stays the group above, but a group with processes has no controllers for its children
  if [ -d "/sys/fs/cgroup/$name/system" ]; then echo $$ > "/sys/fs/cgroup/$name/system/cgroup.procs"; fi
  exec unshare --mount --pid --net --uts --ipc --fork --kill-child=KILL --mount-proc --propagation private bash "$0" init "$node" "$name"
}

mount_control_groups() {
  local unified=no hierarchy controller
  if [ -e /sys/fs/cgroup/cgroup.controllers ]; then unified=yes; fi
  mount -t sysfs sysfs /sys
  # the machine's mounts show the whole tree; new ones show this namespace's part
  if [ $unified = no ]; then
    mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup
    for hierarchy in $(cut -d: -f2 /proc/self/cgroup); do
      mkdir "/sys/fs/cgroup/${hierarchy#name=}"
      mount -t cgroup -o "${hierarchy/#name=/none,name=}" cgroup "/sys/fs/cgroup/${hierarchy#name=}"
    done
  else
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
    for controller in $(cat /sys/fs/cgroup/cgroup.controllers); do echo "+$controller" > /sys/fs/cgroup/cgroup.subtree_control; done
  fi
}

keep_sysctls() {
  # the kubelet writes these, and they are the machine's, not the namespace's. It leaves them alone where they have its
  # values already: show it files that do
  local number=0 setting
  for setting in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
    kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
    [ -e "/proc/sys/${setting%=*}" ] || continue
    echo "${setting#*=}" > "/run/sysctl.$number"
    mount --bind "/run/sysctl.$number" "/proc/sys/${setting%=*}"
    number=$((number + 1))
  done
}

init() {
  # the kubelet wants shared mounts; the machine is no peer of them
  mount --make-rprivate / && mount --make-rshared /
  mount -t tmpfs tmpfs /run && mkdir -p /run/lock
  # libcni and the kubelet's device plugins write below /var/lib whatever they are told
  mount -t tmpfs tmpfs /var/lib
  # drivers of devices look for the kubelet where it is by default
  mkdir -p "$node/var/kubelet" && ln -s "$node/var/kubelet" /var/lib/kubelet
  mount_control_groups
  keep_sysctls
  mount --bind "$node/var/log" /var/log
  # a resolv.conf that leads into /run has just lost its target
  if [ ! -e /etc/resolv.conf ]; then mkdir -p "$(dirname "$(readlink -m /etc/resolv.conf)")" && touch "$(readlink -m /etc/resolv.conf)"; fi
  mount --bind "$node/etc/resolv.conf" "$(readlink -f /etc/resolv.conf)"
  mount --bind "$node/etc/hosts" /etc/hosts
  hostname "$name"
  ip link set lo up
  echo ready > "$node/run/ready"
  trap : TERM
  while :; do sleep 3600 & wait $! || true; done
}

shift 3
"$stage" "$@"
