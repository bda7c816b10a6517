{{- define "kube-node-ready.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* Only the release name if it contains the chart's name. Cut so that what the chart and the controller add to it fits into 63 characters. */}}
{{- define "kube-node-ready.fullname" -}}
{{- $name := include "kube-node-ready.name" . }}
{{- $name = contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name) }}
{{- default $name .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- end }}

{{/*
The selector of the DaemonSet. It is immutable, and that of chart 0.2 has these labels too: 0.2 is upgraded in place. It adopts every pod
with them that no controller owns.
*/}}
{{- define "kube-node-ready.daemonSetSelector" -}}
app.kubernetes.io/name: {{ include "kube-node-ready.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{/* What selects the agents among the pods of a release. */}}
{{- define "kube-node-ready.selectorLabels" -}}
{{ include "kube-node-ready.daemonSetSelector" . }}
app.kubernetes.io/component: agent
{{- end }}

{{/* Where the objects are. */}}
{{- define "kube-node-ready.namespace" -}}
{{- .Values.namespaceOverride | default .Release.Namespace }}
{{- end }}

{{/* The labels of all objects: commonLabels replaces none of the chart's. */}}
{{- define "kube-node-ready.labels" -}}
{{- $chart := printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- merge (include "kube-node-ready.selectorLabels" . | fromYaml) (dict
  "app.kubernetes.io/part-of" "kube-node-ready" "app.kubernetes.io/version" .Chart.AppVersion
  "app.kubernetes.io/managed-by" .Release.Service "helm.sh/chart" $chart) (.Values.commonLabels | default dict) | toYaml }}
{{- end }}

{{/* The labels above merged with the user's, which win: (list . LABELS). Merged, because not every YAML reader accepts a key twice. */}}
{{- define "kube-node-ready.labelsAnd" -}}
{{- merge (dict) (index . 1 | default dict) (include "kube-node-ready.labels" (index . 0) | fromYaml) | toYaml }}
{{- end }}

{{/* The selector's labels for another component: (list . COMPONENT). */}}
{{- define "kube-node-ready.selectorLabelsOf" -}}
{{- merge (dict "app.kubernetes.io/component" (index . 1)) (include "kube-node-ready.selectorLabels" (index . 0) | fromYaml) | toYaml }}
{{- end }}

{{/* The labels of a pod: (list . COMPONENT LABELS). */}}
{{- define "kube-node-ready.podLabels" -}}
{{- $selecting := include "kube-node-ready.selectorLabelsOf" . | fromYaml }}
{{- merge $selecting (index . 2 | default dict) ((index . 0).Values.commonLabels | default dict) | toYaml }}
{{- end }}

{{- define "kube-node-ready.controllerLabels" -}}
{{- include "kube-node-ready.labelsAnd" (list . (dict "app.kubernetes.io/component" "controller")) }}
{{- end }}

{{/* Name of the controller's objects. */}}
{{- define "kube-node-ready.controllerName" -}}
{{- printf "%s-controller" (include "kube-node-ready.fullname" .) }}
{{- end }}

{{/* Name of the policy that adds the startup taint, and of its binding. */}}
{{- define "kube-node-ready.startupTaintName" -}}
{{- printf "%s-startup-taint" (include "kube-node-ready.fullname" .) }}
{{- end }}

{{/* A name is required: with the account `default`, every pod of the namespace could patch nodes. */}}
{{- define "kube-node-ready.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "kube-node-ready.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "kube-node-ready.image" -}}
{{- include "kube-node-ready.reference" (list .Values.image.repository (.Values.image.tag | default .Chart.AppVersion)) }}
{{- end }}

{{- define "kube-node-ready.controllerImage" -}}
{{- $image := .Values.controller.image }}
{{- include "kube-node-ready.reference" (list $image.repository ($image.tag | default .Values.image.tag | default .Chart.AppVersion)) }}
{{- end }}

{{/* The chart's pull secrets and the pull secrets of a parent chart, which may be names alone; or nothing. */}}
{{- define "kube-node-ready.imagePullSecrets" -}}
{{- $secrets := .Values.imagePullSecrets | default list }}
{{- range (.Values.global).imagePullSecrets }}
{{- $secrets = kindIs "string" . | ternary (dict "name" .) . | append $secrets }}
{{- end }}
{{- with uniq $secrets }}{{ toYaml . }}{{ end }}
{{- end }}

{{/* (list REPOSITORY TAG). A digest follows an @ instead of a colon. */}}
{{- define "kube-node-ready.reference" -}}
{{- printf "%s%s%s" (index . 0) (hasPrefix "sha256:" (index . 1) | ternary "@" ":") (index . 1) }}
{{- end }}

{{/*
Binds the Role of a name and namespace, or without a namespace the ClusterRole: (dict "root" $ "name" NAME "namespace" NAMESPACE
"account" ACCOUNT "labels" LABELS "annotations" ANNOTATIONS).
*/}}
{{- define "kube-node-ready.binding" -}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ .namespace | empty | ternary "ClusterRoleBinding" "RoleBinding" }}
metadata:
  name: {{ quote .name }}
  {{- with .namespace }}
  namespace: {{ quote . }}
  {{- end }}
  labels:
    {{- .labels | nindent 4 }}
  {{- with .annotations }}
  annotations:
    {{- . | nindent 4 }}
  {{- end }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ .namespace | empty | ternary "ClusterRole" "Role" }}
  name: {{ quote .name }}
subjects:
  - kind: ServiceAccount
    name: {{ quote .account }}
    namespace: {{ include "kube-node-ready.namespace" .root | quote }}
{{- end }}

{{/* "true" if the agents stay and check their nodes again, or nothing. */}}
{{- define "kube-node-ready.recheck" -}}
{{- with .Values.config.recheckInterval }}{{ if gt (include "kube-node-ready.seconds" . | int) 0 }}true{{ end }}{{ end }}
{{- end }}

{{- define "kube-node-ready.peersName" -}}
{{- printf "%s-peers" (include "kube-node-ready.fullname" .) }}
{{- end }}

{{/*
The markers of a node that is not verified in time, joined by commas. The controller reads the condition of every node, rechecks have
no other way to show what they find, and condition: always writes it at every verdict.
*/}}
{{- define "kube-node-ready.onTimeout" -}}
{{- $markers := splitList "," .Values.config.onTimeout }}
{{- if or .Values.controller.enabled (include "kube-node-ready.recheck" .) (eq .Values.config.condition "always") }}
{{- $markers = append (without $markers "keep") "condition" | uniq }}
{{- end }}
{{- join "," $markers }}
{{- end }}

{{/* The agent's environment. Not in the ConfigMap's template, so that the pod's checksum covers the settings without the labels. */}}
{{- define "kube-node-ready.environment" -}}
{{- with .Values.config -}}
INITIAL_TIMEOUT: {{ .initialTimeout | quote }}
CHECK_TIMEOUT: {{ .checkTimeout | quote }}
MAX_RETRIES: {{ .maxRetries | quote }}
RETRY_BACKOFF: {{ .retryBackoff | quote }}
DNS_TEST_DOMAINS: {{ .dnsTestDomains | join "," | quote }}
NETWORK_TARGETS: {{ .networkTargets | join "," | quote }}
DNS_SERVICE: {{ .dnsService | quote }}
MAX_CLOCK_SKEW: {{ .maxClockSkew | quote }}
{{- with .require }}
REQUIRE: {{ toRawJson . | replace `"true":{` `"on":{` | quote }} {{- /* YAML 1.1 reads on as true */}}
{{- end }}
TAINT_KEY: {{ .taintKey | quote }}
TAINT_VALUE: {{ .taintValue | quote }}
TAINT_EFFECT: {{ .taintEffect | quote }}
VERIFIED_LABEL: {{ .verifiedLabel | quote }}
VERIFIED_LABEL_VALUE: {{ .verifiedLabelValue | quote }}
LATE_TAINT_WINDOW: {{ .lateTaintWindow | quote }}
WAIT_FOR_TAINTS: {{ .waitForTaints | join "," | quote }}
ALSO_REMOVE_TAINTS: {{ .alsoRemoveTaints | join "," | quote }}
ON_TIMEOUT: {{ include "kube-node-ready.onTimeout" $ | quote }}
FAILED_TAINT_KEY: {{ .failedTaintKey | quote }}
CONDITION_TYPE: {{ .conditionType | quote }}
CONDITION: {{ .condition | quote }}
RECHECK_INTERVAL: {{ .recheckInterval | quote }}
FAILURE_THRESHOLD: {{ .failureThreshold | quote }}
RECOVERY_THRESHOLD: {{ .recoveryThreshold | quote }}
ENABLE_CONNECTIVITY_MATRIX: {{ .peers | quote }}
PEERS_SERVICE: {{ printf "%s/%s" (include "kube-node-ready.namespace" $) (include "kube-node-ready.peersName" $) | quote }}
ENABLE_METRICS: {{ .enableMetrics | quote }}
METRICS_PORT: {{ .metricsPort | quote }}
METRICS_LINGER: {{ include "kube-node-ready.linger" $ | quote }}
LOG_LEVEL: {{ .logLevel | quote }}
LOG_FORMAT: {{ .logFormat | quote }}
{{- end }}
{{- end }}

{{- define "kube-node-ready.nodeSelector" -}}
{{- merge (dict "kubernetes.io/os" "linux") (.Values.nodeSelector | default dict) | toYaml }}
{{- end }}

{{/* Requirements for every node that the pod may run on. */}}
{{- define "kube-node-ready.nodeRules" -}}
{{- if eq .Values.deploymentMode "daemonset" }}
# Once the node has the label, the DaemonSet controller deletes the pod. Agents that stay leave out the nodes that were there before.
- key: {{ .Values.config.verifiedLabel | quote }}
  {{- include "kube-node-ready.recheck" . | empty | ternary "operator: DoesNotExist" "operator: NotIn\nvalues: [preexisting]" | nindent 2 }}
{{- end }}
# Serverless nodes run no DaemonSet pods.
- key: eks.amazonaws.com/compute-type
  operator: NotIn
  values: [fargate]
- key: type
  operator: NotIn
  values: [virtual-kubelet]
{{- end }}

{{/*
The user's affinity with the chart's rules added. Node selector terms are alternatives, so each term needs the chart's rules. As a term
of their own they would not apply to a node that matches only a term of the user.
*/}}
{{- define "kube-node-ready.affinity" -}}
{{- $rules := include "kube-node-ready.nodeRules" . | fromYamlArray }}
{{- $affinity := deepCopy (.Values.affinity | default dict) }}
{{- $node := $affinity.nodeAffinity | default dict }}
{{- $required := $node.requiredDuringSchedulingIgnoredDuringExecution | default dict }}
{{- $terms := list }}
{{- range $required.nodeSelectorTerms | default (list dict) }}
{{- $terms = append $terms (set . "matchExpressions" (concat $rules (.matchExpressions | default list))) }}
{{- end }}
{{- $_ := set $node "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" $terms) }}
{{- $_ := set $affinity "nodeAffinity" $node }}
{{- toYaml $affinity }}
{{- end }}

{{/* The keys of all taints that the release removes, the startup taint's first, as a JSON list. */}}
{{- define "kube-node-ready.taintKeys" -}}
{{- concat (list .Values.config.taintKey .Values.config.failedTaintKey) .Values.config.alsoRemoveTaints | uniq | toJson }}
{{- end }}

{{/* Keys of taints, as JSON, as a regular expression of PromQL. */}}
{{- define "kube-node-ready.keysPattern" -}}
{{- range $i, $key := fromJsonArray . }}{{ if $i }}|{{ end }}{{ regexQuoteMeta $key }}{{ end }}
{{- end }}

{{/*
The user's tolerations with the chart's added: (list . TOLERATIONS). Whatever tolerations the user sets, the pods always tolerate the
taints of the nodes that they must release.
*/}}
{{- define "kube-node-ready.tolerate" -}}
{{- $own := list }}
{{- range include "kube-node-ready.taintKeys" (index . 0) | fromJsonArray }}
{{- $own = append $own (dict "key" . "operator" "Exists") }}
{{- end }}
{{- toYaml (concat $own (index . 1 | default list)) }}
{{- end }}

{{/*
A Go duration in whole seconds, rounded up. Helm cannot parse a duration, but it can add one to a date: this is the difference to an
arbitrary day.
*/}}
{{- define "kube-node-ready.seconds" -}}
{{- $day := toDate "2006-01-02" "2000-01-01" }}
{{- sub ($day | mustDateModify . | mustDateModify "999999999ns" | unixEpoch) ($day | unixEpoch) }}
{{- end }}

{{/*
"true" if the chart renders the policy. Kubernetes 1.30 and newer serves its v1, and puts the node's name into a pod's token. Where
Helm has no API server to ask (it knows no Node then), the Kubernetes version decides.
*/}}
{{- define "kube-node-ready.nodeAuthorization" -}}
{{- $enabled := toString .Values.nodeAuthorization.enabled }}
{{- if eq $enabled "auto" }}
{{- $isServed := .Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy" }}
{{- $isOffline := not (.Capabilities.APIVersions.Has "v1/Node") }}
{{- $enabled = or $isServed (and $isOffline (semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version)) | toString }}
{{- end }}
{{- $enabled }}
{{- end }}

{{/*
Long enough for the last scrape: one interval, and the time until Prometheus discovers the pod. An agent that rechecks its node is
scraped all the time.
*/}}
{{- define "kube-node-ready.linger" -}}
{{- $interval := 0 }}
{{- range list .Values.podMonitor .Values.serviceMonitor .Values.scrapeAnnotations }}
{{- if and .enabled (eq $.Values.deploymentMode "daemonset") (not (include "kube-node-ready.recheck" $)) }}
{{- $interval = include "kube-node-ready.seconds" .interval | int | max $interval }}
{{- end }}
{{- end }}
{{- if .Values.config.metricsLinger }}
{{- .Values.config.metricsLinger }}
{{- else if $interval }}
{{- printf "%ds" (add $interval 15 | min 3600) }}
{{- else -}}
0s
{{- end }}
{{- end }}

{{/* Seconds between SIGTERM and SIGKILL: the agent reads its node once more after the linger, which takes up to 4 s. A release that is in
flight is finished before: two patches, the condition and the Event, each within checkTimeout. */}}
{{- define "kube-node-ready.gracePeriod" -}}
{{- $release := include "kube-node-ready.seconds" .Values.config.checkTimeout | int | mul 4 | add 20 }}
{{- include "kube-node-ready.linger" . | include "kube-node-ready.seconds" | int | add 10 | max 90 | max $release }}
{{- end }}

{{/* The update strategy of the DaemonSet. */}}
{{- define "kube-node-ready.updateStrategy" -}}
{{- $strategy := deepCopy (.Values.updateStrategy | default dict) }}
{{- with $strategy.rollingUpdate }}
{{- if eq (toString .maxUnavailable) "" }}
{{- $_ := set . "maxUnavailable" (include "kube-node-ready.recheck" $ | empty | ternary "100%" "10%") }}
{{- end }}
{{- end }}
{{- toYaml $strategy }}
{{- end }}
