{{/* What follows from several values, and the settings that the programs read. */}}

{{/* "true" if the agents stay and check their nodes again, or nothing. */}}
{{- define "kube-node-ready.recheck" -}}
{{- with .Values.config.recheckInterval }}{{ if gt (include "kube-node-ready.seconds" . | int) 0 }}true{{ end }}{{ end }}
{{- end }}

{{/* dry-run or delete, or nothing. YAML reads off without quotes as false. */}}
{{- define "kube-node-ready.remediation" -}}
{{- without (toString .Values.controller.remediation.mode | list) "off" "false" | join "" }}
{{- end }}

{{/*
"true" if the API server serves v1 of a kind of policies: (list . KIND VERSION), the first Kubernetes version that does. Without an API
server to ask (no Node is known then), Helm's Kubernetes version decides.
*/}}
{{- define "kube-node-ready.serves" -}}
{{- $capabilities := (first .).Capabilities }}
{{- $isServed := index . 1 | printf "admissionregistration.k8s.io/v1/%s" | $capabilities.APIVersions.Has }}
{{- $isOffline := not ($capabilities.APIVersions.Has "v1/Node") }}
{{- or $isServed (and $isOffline (semverCompare (last . | printf ">=%s-0") $capabilities.KubeVersion.Version)) }}
{{- end }}

{{/* "true" if the chart renders the policy. Kubernetes 1.30 also puts the node's name into a pod's token. */}}
{{- define "kube-node-ready.nodeAuthorization" -}}
{{- $enabled := toString .Values.nodeAuthorization.enabled }}
{{- eq $enabled "auto" | ternary (include "kube-node-ready.serves" (list . "ValidatingAdmissionPolicy" "1.30.0")) $enabled }}
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

{{/*
A Go duration in whole seconds, rounded up. Helm cannot parse a duration, but it can add one to a date: this is the difference to an
arbitrary day.
*/}}
{{- define "kube-node-ready.seconds" -}}
{{- $day := toDate "2006-01-02" "2000-01-01" }}
{{- sub ($day | mustDateModify . | mustDateModify "999999999ns" | unixEpoch) ($day | unixEpoch) }}
{{- end }}

{{/*
Long enough for the last scrape: one interval, and the time until Prometheus discovers the pod. Only a one-shot agent lingers: an agent
that rechecks its node is scraped all the time, and a worker serves no metrics.
*/}}
{{- define "kube-node-ready.linger" -}}
{{- $isOneShot := and (eq .Values.deploymentMode "daemonset") (include "kube-node-ready.recheck" . | empty) }}
{{- $interval := 0 }}
{{- range list .Values.podMonitor .Values.serviceMonitor .Values.scrapeAnnotations }}
{{- if and .enabled $isOneShot }}{{ $interval = include "kube-node-ready.seconds" .interval | int | max $interval }}{{ end }}
{{- end }}
{{- if .Values.config.metricsLinger }}
{{- .Values.config.metricsLinger }}
{{- else if $interval }}
{{- printf "%ds" (add $interval 15 | min 3600) }}
{{- else -}}
0s
{{- end }}
{{- end }}

{{/*
Seconds between SIGTERM and SIGKILL: the agent reads its node once more after the linger, which takes up to 4 s. A release that is in
flight is finished before: two patches, the condition and the Event, each within checkTimeout.
*/}}
{{- define "kube-node-ready.gracePeriod" -}}
{{- $release := include "kube-node-ready.seconds" .Values.config.checkTimeout | int | mul 4 | add 20 }}
{{- include "kube-node-ready.linger" . | include "kube-node-ready.seconds" | int | add 10 | max 90 | max $release }}
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
