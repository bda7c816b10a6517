{{/*
What the Pod Security Standard `restricted` allows, as JSON: https://kubernetes.io/docs/concepts/security/pod-security-standards/
*/}}
{{- define "kube-node-ready.restricted" -}}
{{- dict
  "seccomp" (list "RuntimeDefault" "Localhost")
  "seLinux" (list "" "container_t" "container_init_t" "container_kvm_t" "container_engine_t")
  "capabilities" (list "NET_BIND_SERVICE")
  "sysctls" (list "kernel.shm_rmid_forced" "net.ipv4.ip_local_port_range" "net.ipv4.ip_local_reserved_ports"
    "net.ipv4.ip_unprivileged_port_start" "net.ipv4.ping_group_range" "net.ipv4.tcp_fin_timeout" "net.ipv4.tcp_keepalive_intvl" "net.ipv4.tcp_keepalive_probes"
    "net.ipv4.tcp_keepalive_time" "net.ipv4.tcp_rmem" "net.ipv4.tcp_syncookies" "net.ipv4.tcp_wmem") | toJson }}
{{- end }}

{{/*
The most that a worker may request of each resource, as JSON. A limit without a request is a request too. A LimitRange may add requests
that the values do not have, up to these bounds.
*/}}
{{- define "kube-node-ready.mostRequested" -}}
{{- $most := dict "cpu" "1" "memory" "1Gi" "ephemeral-storage" "1Gi" }}
{{- $resources := .Values.resources | default dict }}
{{- range list $resources.limits $resources.requests }}
{{- range $name, $quantity := . }}{{ $_ := set $most $name (toString $quantity) }}{{ end }}
{{- end }}
{{- toJson $most }}
{{- end }}

{{/*
What a new worker must be: the same dictionary as for nodePolicy. An account that may create pods can otherwise use every account and secret of the namespace, serve in the
place of its Services, block nodes, or preempt other pods.
*/}}
{{- define "kube-node-ready.newWorkerRules" -}}
{{- $template := include "kube-node-ready.workerTemplate" .root | fromYaml -}}
{{- $allowed := include "kube-node-ready.restricted" .root | fromJson -}}
{{- $image := include "kube-node-ready.image" .root -}}
{{- $workersAccount := $template.spec.serviceAccountName -}}
{{- $prefix := printf "%s-worker-" (include "kube-node-ready.fullname" .root) -}}
# Services select pods by their labels, and webhooks, CNIs and schedulers obey annotations. The last of these annotations are added by
# LimitRanges and OpenShift.
- expression: >-
    variables.deletes || (variables.metadata.?name.orValue('').startsWith('{{ $prefix }}') &&
    variables.labels.all(k, k == 'node-ready/node' || dyn({{ toJson $template.metadata.labels }})[?k] == optional.of(variables.labels[k])) &&
    variables.annotations.all(k, k.startsWith('node-ready/') ||
    dyn({{ toJson $template.metadata.annotations }})[?k] == optional.of(variables.annotations[k]) ||
    k in ['kubernetes.io/limit-ranger', 'openshift.io/scc', 'security.openshift.io/validated-scc-subject-type', 'seccomp.security.alpha.kubernetes.io/pod']))
  reason: Forbidden
  message: {{ printf "%s may create only pods with a name that begins with %s, and with no labels and annotations but those of the chart and its own" .account $prefix | quote }}
# The garbage collector deletes a worker with its node. A finalizer would keep it.
- expression: >-
    variables.deletes || (variables.metadata.?finalizers.orValue([]).size() == 0 && variables.metadata.?ownerReferences.orValue([]).size() == 1 &&
    variables.metadata.ownerReferences[0].kind == 'Node' && variables.metadata.ownerReferences[0].apiVersion == 'v1')
  reason: Forbidden
  message: {{ printf "%s may create only pods that one node owns, without finalizers" .account | quote }}
- expression: >-
    variables.deletes || (variables.spec.?serviceAccountName.orValue('') == '{{ $workersAccount }}' &&
    variables.spec.?automountServiceAccountToken.orValue(true) == false)
  reason: Forbidden
  message: {{ printf "%s may create only pods with the account %s and without its token" .account $workersAccount | quote }}
- expression: >-
    variables.deletes || (variables.spec.containers.size() == 1 && variables.container.image == '{{ $image }}' &&
    variables.container.?args.orValue([]) == ['--worker'] && variables.spec.?restartPolicy.orValue('') == 'Never')
  reason: Forbidden
  message: {{ printf "%s may create only pods with one container that runs %s --worker once: no sidecars, no other arguments, restartPolicy Never" .account $image | quote }}
- expression: variables.foreign.size() == 0
  reason: Forbidden
  messageExpression: "'{{ .account }} may create only pods like the workers of the chart, which do not have ' + variables.foreign.join(', ')"
- expression: >-
    variables.deletes || (variables.container.?envFrom.orValue([]).all(e, e == dyn({{ index $template.spec.containers 0 "envFrom" | first | toJson }})) &&
    variables.container.?env.orValue([]).all(e, (e.name in ['DNS_ENDPOINTS', 'CLUSTER_DOMAIN', 'VERDICT_KEY'] && !has(e.valueFrom)) ||
    (e.name in ['NODE_NAME', 'NODE_IP', 'POD_NAMESPACE'] && e.?valueFrom.?fieldRef.hasValue()) ||
    (e.name == 'CLUSTER_CA' && e.?valueFrom.?configMapKeyRef.?name.orValue('') == 'kube-root-ca.crt')
    {{- range .root.Values.extraEnv }} ||
    (e.name == {{ toJson .name }} && e.?value.orValue('') == {{ .value | default "" | toJson }} && !has(e.valueFrom))
    {{- end }}) &&
    variables.container.?ports.orValue([]).all(p, p.?hostPort.orValue(0) == 0) && !variables.container.?readinessProbe.?exec.hasValue() &&
    !['httpGet', 'tcpSocket'].exists(kind, variables.container.?readinessProbe[?kind].?host.hasValue()))
  reason: Forbidden
  message: {{ printf "%s may create only pods without secrets, variables that the chart does not set, ports of the node, and probes of other hosts or by commands" .account | quote }}
# The Pod Security Standard `restricted`. What a container sets wins over what its pod sets. OpenShift sets the SELinux level.
- expression: >-
    variables.deletes || (variables.context.?runAsNonRoot.or(variables.podContext.?runAsNonRoot).orValue(false) &&
    variables.context.?seccompProfile.?type.or(variables.podContext.?seccompProfile.?type).orValue('') in {{ toJson $allowed.seccomp }} &&
    [variables.context, variables.podContext].all(c, !has(c.windowsOptions) && c.?runAsUser.orValue(1) != 0 &&
    ['user', 'role'].all(f, c.?seLinuxOptions[?f].orValue('') == '') && c.?seLinuxOptions.?type.orValue('') in {{ toJson $allowed.seLinux }} &&
    c.?appArmorProfile.?type.orValue('') != 'Unconfined') &&
    variables.podContext.?sysctls.orValue([]).all(s, s.name in {{ toJson $allowed.sysctls }}) &&
    variables.context.?allowPrivilegeEscalation.orValue(true) == false && !variables.context.?privileged.orValue(false) &&
    variables.context.?procMount.orValue('Default') == 'Default' &&
    variables.context.?capabilities.?add.orValue([]).all(c, c in {{ toJson $allowed.capabilities }}) &&
    'ALL' in variables.context.?capabilities.?drop.orValue([]))
  reason: Forbidden
  message: {{ printf "%s may create only pods that pass the Pod Security Standard restricted" .account | quote }}
# The scheduler places a worker. A pod's anti-affinity would keep others away, its priority and requests would preempt them.
- expression: >-
    variables.deletes || (variables.spec.?affinity.orValue({}).all(k, k == 'nodeAffinity') &&
    {{- if $template.spec.priorityClassName }}
    variables.spec.?priorityClassName.orValue('') == '{{ $template.spec.priorityClassName }}' &&
    {{- else }}
    !variables.spec.?priorityClassName.orValue('').startsWith('system-') &&
    {{- end }}
    variables.requests.all(k, {{ include "kube-node-ready.mostRequested" .root }}[?k].hasValue() &&
    quantity(variables.requests[k]).compareTo(quantity({{ include "kube-node-ready.mostRequested" .root }}[k])) <= 0))
  reason: Forbidden
  message: {{ printf "%s may create only pods that the scheduler places, with the priority class and the requests of the chart, without pod affinity" .account | quote }}
{{- end }}
