{{/* What runs pods, with the name of its objects, as a JSON list. */}}
{{- define "kube-node-ready.components" -}}
{{- $components := list (dict "component" (eq .Values.deploymentMode "controller" | ternary "worker" "agent") "name" (include "kube-node-ready.fullname" .)) }}
{{- if .Values.controller.enabled }}
{{- $components = append $components (dict "component" "controller" "name" (include "kube-node-ready.controllerName" .)) }}
{{- end }}
{{- toJson $components }}
{{- end }}

{{/* dry-run or delete, or nothing. YAML reads off without quotes as false. */}}
{{- define "kube-node-ready.remediation" -}}
{{- without (toString .Values.controller.remediation.mode | list) "off" "false" | join "" }}
{{- end }}

{{/* Any port but the one for metrics. */}}
{{- define "kube-node-ready.healthPort" -}}
{{- eq (int .Values.config.metricsPort) 8081 | ternary 8082 8081 }}
{{- end }}

{{/* What the controller needs. */}}
{{- define "kube-node-ready.controllerMistakes" -}}
{{- $controller := .Values.controller }}
{{- $workers := eq .Values.deploymentMode "controller" }}
{{- $name := include "kube-node-ready.fullname" . }}
{{- $needs := "needs controller.enabled: nothing else" }}
{{- if $controller.enabled }}
{{- include "kube-node-ready.durationMistake" (list "controller.notStartedAfter" $controller.notStartedAfter "1s" "24h") }}
{{- range $section, $names := dict "retaint" (list "controlGroupFor" "coolDown" "noAgentFor")
  "remediation" (list "deleteAfter" "failedFor" "controlGroupFor") }}
{{- range $names }}
{{- list (printf "controller.%s.%s" $section .) (index $controller $section .) "1s" "24h" | include "kube-node-ready.durationMistake" }}
{{- end }}
{{- end }}
{{ if gt (len $name) 52 -}}
with controller.enabled, the full name {{ $name }} must have at most 52 characters: set fullnameOverride{{ end }}
{{ if $workers }}{{ include "kube-node-ready.restrictedMistakes" . }}{{ end }}
{{ if and (contains "sha256:" .Values.image.tag) (not $controller.image.tag) -}}
controller.image.tag is required, because image.tag is the digest of another image{{ end }}
{{- else }}
{{ if $workers }}deploymentMode controller {{ $needs }} starts the workers{{ end }}
{{ with include "kube-node-ready.remediation" . }}controller.remediation.mode {{ . }} {{ $needs }} replaces nodes{{ end }}
{{ if $controller.verifyAfterReboot }}controller.verifyAfterReboot {{ $needs }} removes labels{{ end }}
{{ if $controller.retaint.enabled }}controller.retaint.enabled {{ $needs }} re-taints nodes{{ end }}
{{- end }}
{{- if $controller.retaint.enabled }}
{{ if not (include "kube-node-ready.recheck" .) -}}
controller.retaint.enabled needs config.recheckInterval: only rechecks find that a verified node fails{{ end }}
{{ if has $name (list "dns" "api" "network" "service" "peers" "taints" "unverified") -}}
the name of the release, {{ $name }}, is also the value of a failed taint that an agent adds: set fullnameOverride{{ end }}
{{- end }}
{{ if and $controller.remediation.deleteNodes (not (include "kube-node-ready.remediation" .)) -}}
controller.remediation.deleteNodes needs controller.remediation.mode: nothing else deletes nodes{{ end }}
{{- end }}
