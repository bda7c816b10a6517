{{/*
What to set instead of each value that the charts 0.1 to 0.5 had and this one has not, and its defaults there. A value that equals one of
them, or is a part of it, is ignored: nobody has chosen it. Any other value is refused: nothing that somebody has chosen is dropped, or taken over in silence.
*/}}
{{- define "kube-node-ready.formerValues" -}}
config.clusterDNSIP: {now: set an IP address in config.dnsTestDomains, was: [""]}
nodeAffinity: &affinity
  now: set affinity.nodeAffinity, without the rule for config.verifiedLabel
  was: [{requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: node-ready/verified, operator: DoesNotExist}]}]}}]
metrics.enabled: &enableMetrics {now: set config.enableMetrics, was: [true]}
metrics.port: &metricsPort {now: set config.metricsPort, was: [8080]}

daemonset.image.repository: &repository {now: set image.repository, was: [ghcr.io/imunhatep/kube-node-ready]}
daemonset.image.tag: &tag {now: leave image.tag empty, was: ["0.2.6", "0.3.0", "0.4.0", "0.4.1", "0.4.2", "0.4.3"]}
daemonset.image.pullPolicy: &pullPolicy {now: set image.pullPolicy, was: [IfNotPresent]}
daemonset.imagePullSecrets: {now: set imagePullSecrets}
daemonset.nodeSelector: {now: set nodeSelector, was: [{}]}
daemonset.resources: {now: set resources, was: [{requests: {cpu: 50m, memory: 64Mi}, limits: {cpu: 100m, memory: 128Mi}}]}
daemonset.updateStrategy: {now: set updateStrategy, was: [{type: RollingUpdate, rollingUpdate: {maxUnavailable: 1}}]}
daemonset.nodeAffinity: *affinity
daemonset.tolerations:
  now: set tolerations
  was:
    - - {effect: NoSchedule, key: node-ready/unverified, operator: Exists}
      - {effect: NoSchedule, key: node.kubernetes.io/not-ready, operator: Exists}
      - {effect: NoSchedule, key: node.kubernetes.io/unreachable, operator: Exists}
daemonset.podAnnotations: {now: set podAnnotations, was: [{}]}
daemonset.metrics.enabled: *enableMetrics
daemonset.metrics.port: *metricsPort
daemonset.serviceAccount.create: &create {now: set serviceAccount.create, was: [true]}
daemonset.serviceAccount.annotations: &annotations {now: set serviceAccount.annotations, was: [{}]}
daemonset.serviceAccount.name: &account {now: set serviceAccount.name, was: [""]}
daemonset.config.initialTimeout: {now: set config.initialTimeout, was: [300s]}
daemonset.config.checkTimeout: {now: set config.checkTimeout, was: [10s]}
daemonset.config.maxRetries: {now: set config.maxRetries, was: [5]}
daemonset.config.retryBackoff: {now: set config.retryBackoff, was: [exponential]}
daemonset.config.dnsTestDomains: &domains {now: set config.dnsTestDomains, was: [[kubernetes.default.svc.cluster.local, google.com]]}
daemonset.config.clusterDNSIP: &dns {now: set an IP address in config.dnsTestDomains, was: [""]}
daemonset.config.taintKey: {now: set config.taintKey, was: [node-ready/unverified]}
daemonset.config.taintValue: {now: set config.taintValue, was: ["true"]}
daemonset.config.taintEffect: {now: set config.taintEffect, was: [NoSchedule]}
daemonset.config.verifiedLabel: &label {now: set config.verifiedLabel, was: [node-ready/verified]}
daemonset.config.verifiedLabelValue: &labelValue {now: set config.verifiedLabelValue, was: ["true"]}
daemonset.config.deleteFailedNode: &delete
  now: nothing is deleted without a budget, see controller.remediation.mode and begin with dry-run
  was: [false]
daemonset.config.enableMetrics: *enableMetrics
daemonset.config.metricsPort: *metricsPort
daemonset.config.logLevel: &level {now: set config.logLevel, was: [info]}
daemonset.config.logFormat: &format {now: set config.logFormat, was: [json]}

worker.serviceAccount.create: *create
worker.serviceAccount.annotations: *annotations
worker.serviceAccount.name: *account
worker.config.maxRetries: {now: set config.maxRetries, was: [1]}
worker.config.retryBackoff: {now: set config.retryBackoff, was: [linear]}
worker.config.checkTimeoutSeconds: {now: set config.checkTimeout with a unit, was: [5]}
worker.config.initialCheckTimeoutSeconds: {now: set config.initialTimeout with a unit}
worker.config.dnsTestDomains: *domains
worker.config.clusterDnsIp: *dns
worker.config.logging.level: *level
worker.config.logging.format: *format

controller.affinity: {now: "set controller.nodeSelector, the replicas spread by themselves", was: [{}]}
controller.health.port: &health {now: "remove it, the controller chooses the port", was: [8081]}
controller.leaderElection: {now: "remove it, the replicas always elect a leader", was: [
  {enabled: true, leaseDuration: 15s, renewDeadline: 10s, retryPeriod: 2s},
  {enabled: true, id: kube-node-ready-leader, leaseDuration: 15s, renewDeadline: 10s, retryPeriod: 2s}]}
controller.metrics.enabled: *enableMetrics
controller.metrics.port: *metricsPort
controller.metrics.serviceMonitor.enabled: {now: set serviceMonitor.enabled, was: [false]}
controller.metrics.serviceMonitor.interval: {now: set serviceMonitor.interval, was: [30s]}
controller.metrics.serviceMonitor.scrapeTimeout: {now: "remove it, Prometheus has a default", was: [10s]}
controller.metrics.serviceMonitor.labels: {now: set serviceMonitor.labels, was: [{}]}
controller.metrics.serviceMonitor.annotations: {now: remove it, was: [{}]}
controller.securityContext: {now: set securityContext}
controller.service.type: {now: "remove it, there is no Service for clients", was: [ClusterIP]}
controller.serviceAccount: {now: "remove it, the account is always FULLNAME-controller", was: [{create: true, annotations: {}, name: ""}]}

controller.config.reconciliation: {now: "remove it, the controller watches the nodes", was: [{intervalSeconds: 10, maxRetries: 5, retryBackoff: exponential}]}
controller.config.nodeManagement.deleteFailedNodes: *delete
controller.config.nodeManagement.taints:
  now: "set config.taintKey, config.taintValue and config.taintEffect, and the keys of further taints in config.alsoRemoveTaints"
  was: [[{key: node-ready/unverified, value: "true", effect: NoSchedule}]]
controller.config.nodeManagement.verifiedLabel.key: *label
controller.config.nodeManagement.verifiedLabel.value: *labelValue
controller.config.metrics.enabled: *enableMetrics
controller.config.metrics.port: *metricsPort
controller.config.health.port: *health
controller.config.logging.level: *level
controller.config.logging.format: *format
controller.config.kubernetes: {now: remove it, was: [{kubeconfigPath: "", qps: 50, burst: 100}]}
controller.config.worker.image.repository: *repository
controller.config.worker.image.tag: *tag
controller.config.worker.image.pullPolicy: *pullPolicy
controller.config.worker.namespace: {now: "remove it, the workers run in the release's namespace"}
controller.config.worker.serviceAccountName: {now: set serviceAccount.name}
controller.config.worker.timeoutSeconds: {now: set config.initialTimeout with a unit, was: [300]}
controller.config.worker.priorityClassName: {now: set priorityClassName, was: [system-node-critical]}
controller.config.worker.resources: {now: set resources, was: [
  {requests: {cpu: 50m, memory: 64Mi}, limits: {memory: 128Mi}}, {requests: {cpu: 50m, memory: 64Mi}, limits: {memory: 64Mi}}]}
controller.config.worker.tolerations: {now: set tolerations, was: [[]]}
controller.config.worker.initContainers: {now: "remove it, no agent and no worker runs containers of others", was: [[]]}
controller.config.worker.job: {now: "remove it, a worker is a Pod and not a Job", was: [{activeDeadlineSeconds: 300, backoffLimit: 2, completions: 1, parallelism: 1}]}
{{- end }}

{{/* "true" if something of VALUE is not in DEFAULT, or nothing: (list VALUE DEFAULT). */}}
{{- define "kube-node-ready.differs" -}}
{{- $value := index . 0 }}{{ $default := index . 1 }}
{{- if and (kindIs "map" $value) (kindIs "map" $default) }}
{{- range $key, $inner := $value }}
{{- if not (hasKey $default $key) }}true{{ else }}{{ include "kube-node-ready.differs" (list $inner (get $default $key)) }}{{ end }}
{{- end }}
{{- else if ne (toJson $value) (toJson $default) }}true
{{- end }}
{{- end }}

{{/* A line for each former value in VALUE that somebody has chosen: (list FORMER PATH VALUE). */}}
{{- define "kube-node-ready.chosenFormerValues" -}}
{{- $former := index . 0 }}{{ $path := index . 1 }}{{ $value := index . 2 }}
{{- with get $former $path }}
{{- $chosen := not (kindIs "invalid" $value) }}
{{- range .was }}
{{- if not (include "kube-node-ready.differs" (list $value .)) }}{{ $chosen = false }}{{ end }}
{{- end }}
{{- if $chosen }}
  {{ $path }} {{ toJson $value }}: {{ .now }}
{{- end }}
{{- else }}
{{- if kindIs "map" $value }}
{{- range $key, $inner := $value }}{{ include "kube-node-ready.chosenFormerValues" (list $former (printf "%s.%s" $path $key) $inner) }}{{ end }}
{{- else if not (kindIs "invalid" $value) }}
  {{ $path }} {{ toJson $value }}: remove it, no chart has ever read it
{{- end }}
{{- end }}
{{- end }}

{{/* The controller's resources. Those of 0.3 are its default, too little for this controller: this chart's default then, as in values.yaml. */}}
{{- define "kube-node-ready.controllerResources" -}}
{{- $former := dict "requests" (dict "cpu" "50m" "memory" "64Mi") "limits" (dict "cpu" "200m" "memory" "128Mi") }}
{{- $default := dict "requests" (dict "cpu" "20m" "memory" "96Mi") "limits" (dict "memory" "512Mi") }}
{{- toJson .Values.controller.resources | eq (toJson $former) | ternary $default .Values.controller.resources | toYaml }}
{{- end }}

{{/* What runs of a former release and must be gone before an upgrade. Only helm install and upgrade see it: elsewhere there is no cluster. */}}
{{- define "kube-node-ready.validateFormerObjects" -}}
{{- $namespace := .Release.Namespace }}
{{- with lookup "apps/v1" "DaemonSet" $namespace (include "kube-node-ready.fullname" .) }}
{{- if hasKey .spec.selector.matchLabels "app.kubernetes.io/component" }}
{{- fail (printf "the selector of the DaemonSet %s is that of chart 0.3, and immutable. First run:\n  kubectl --namespace %s delete daemonset %s --cascade=foreground" .metadata.name $namespace .metadata.name) }}
{{- end }}
{{- end }}
{{- /* Before the version is the chart's name or its alias, which has no dot. */}}
{{- with lookup "apps/v1" "Deployment" $namespace (include "kube-node-ready.controllerName" .) }}
{{- if regexMatch `^[^.]+-0\.` (dig "labels" "helm.sh/chart" "" .metadata) }}
{{- fail (printf "the controller %s of a chart before 1.0 and its Jobs would release nodes beside this one. First run:\n  kubectl --namespace %s delete deployment %s --cascade=foreground\n  kubectl --namespace %s delete jobs --selector app=kube-node-ready,component=worker" .metadata.name $namespace .metadata.name $namespace) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Values and images of the charts before 1.0, which the schema admits for what is said about them here. */}}
{{- define "kube-node-ready.validateFormer" -}}
{{- $former := include "kube-node-ready.formerValues" . | fromYaml }}
{{- $chosen := "" }}
{{- range $key := list "nodeAffinity" "metrics" "daemonset" "worker" }}
{{- $chosen = print $chosen (include "kube-node-ready.chosenFormerValues" (list $former $key (index $.Values $key))) }}
{{- end }}
{{- range $section, $keys := dict "config" (list "clusterDNSIP")
  "controller" (list "affinity" "config" "health" "leaderElection" "metrics" "securityContext" "service" "serviceAccount") }}
{{- range $key := $keys }}
{{- if hasKey (get $.Values $section) $key }}
{{- $chosen = print $chosen (include "kube-node-ready.chosenFormerValues" (list $former (printf "%s.%s" $section $key) (get (get $.Values $section) $key))) }}
{{- end }}
{{- end }}
{{- end }}
{{- with $chosen }}
{{- fail (printf "values of a chart before 1.0, see \"Upgrade from 0.x\" in the chart's README:%s" .) }}
{{- end }}
{{- range $name, $image := dict "image" .Values.image "controller.image" .Values.controller.image }}
{{- if regexMatch `:[^/]*$` $image.repository }}
{{- fail (printf "%s.repository %s must not have a tag: set %s.tag, or leave it empty for the chart's appVersion" $name $image.repository $name) }}
{{- end }}
{{- if regexMatch `^[vV]?0([._-]|$)` $image.tag }}
{{- fail (printf "%s.tag %s is an image from before 1.0: leave it empty, for the chart's appVersion" $name $image.tag) }}
{{- end }}
{{- end }}
{{- $repository := .Values.controller.image.repository }}
{{- if and .Values.controller.enabled (or (eq $repository .Values.image.repository) (regexMatch `(^|/)kube-node-ready$` $repository)) }}
{{- fail (printf "controller.image.repository %s is the agent's since 1.0: set ghcr.io/imunhatep/kube-node-ready-controller, or its mirror" $repository) }}
{{- end }}
{{- include "kube-node-ready.validateFormerObjects" . }}
{{- end }}
