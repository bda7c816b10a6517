{{/* What runs pods, with the name of its objects, as a JSON list. */}}
{{- define "kube-node-ready.components" -}}
{{- $components := list (dict "component" (eq .Values.deploymentMode "controller" | ternary "worker" "agent") "name" (include "kube-node-ready.fullname" .)) }}
{{- if .Values.controller.enabled }}
{{- $components = append $components (dict "component" "controller" "name" (include "kube-node-ready.controllerName" .)) }}
{{- end }}
{{- toJson $components }}
{{- end }}

{{/* The controller's own environment, beside the agent's. */}}
{{- define "kube-node-ready.controllerEnvironment" -}}
AGENT_NAME: {{ include "kube-node-ready.fullname" . }}
AGENT_TEMPLATE: /etc/kube-node-ready/agent.yaml
DEPLOYMENT_MODE: {{ .Values.deploymentMode }}
{{- if eq .Values.deploymentMode "controller" }}
MAX_CONCURRENT_WORKERS: {{ .Values.controller.maxConcurrentWorkers | quote }}
{{- end }}
HEALTH_PORT: {{ include "kube-node-ready.healthPort" . | quote }}
NOT_STARTED_AFTER: {{ .Values.controller.notStartedAfter | quote }}
VERIFY_AFTER_REBOOT: {{ .Values.controller.verifyAfterReboot | quote }}
{{- with include "kube-node-ready.remediation" . }}
REMEDIATION_MODE: {{ . }}
DELETE_NODES: {{ $.Values.controller.remediation.deleteNodes | quote }}
DELETE_AFTER: {{ $.Values.controller.remediation.deleteAfter | quote }}
FAILED_FOR: {{ $.Values.controller.remediation.failedFor | quote }}
CONTROL_GROUP_FOR: {{ $.Values.controller.remediation.controlGroupFor | quote }}
{{- end }}
{{- if include "kube-node-ready.recheck" . }}
RETAINT: {{ .Values.controller.retaint.enabled | quote }}
RETAINT_CONTROL_GROUP_FOR: {{ .Values.controller.retaint.controlGroupFor | quote }}
RETAINT_COOL_DOWN: {{ .Values.controller.retaint.coolDown | quote }}
RETAINT_NO_AGENT_FOR: {{ .Values.controller.retaint.noAgentFor | quote }}
{{- end }}
{{- end }}

{{/* dry-run or delete, or nothing. YAML reads off without quotes as false. */}}
{{- define "kube-node-ready.remediation" -}}
{{- without (toString .Values.controller.remediation.mode | list) "off" "false" | join "" }}
{{- end }}

{{/* Any port but the one for metrics. */}}
{{- define "kube-node-ready.healthPort" -}}
{{- eq (int .Values.config.metricsPort) 8081 | ternary 8082 8081 }}
{{- end }}

{{/* The annotations of what helm uninstall runs, with its weight: Helm creates the lowest first. A Job that fails stays, for its log. */}}
{{- define "kube-node-ready.uninstallHook" -}}
helm.sh/hook: post-delete
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}

{{/* Binds the Role of that name: (dict "root" $ "name" NAME "namespace" NAMESPACE). */}}
{{- define "kube-node-ready.controllerBinding" -}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ .name }}
  namespace: {{ .namespace }}
  labels:
    {{- include "kube-node-ready.controllerLabels" .root | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ .name }}
subjects:
  {{- include "kube-node-ready.subjects" (list .root (include "kube-node-ready.controllerName" .root)) | nindent 2 }}
{{- end }}

{{/* Errors that the schema cannot find in what re-taint needs. */}}
{{- define "kube-node-ready.validateRetaint" -}}
{{- if .Values.controller.retaint.enabled }}
{{- if not .Values.controller.enabled }}
{{- fail "controller.retaint.enabled needs controller.enabled: nothing else re-taints nodes" }}
{{- end }}
{{- if not (include "kube-node-ready.recheck" .) }}
{{- fail "controller.retaint.enabled needs config.recheckInterval: only rechecks find that a verified node fails" }}
{{- end }}
{{- $name := include "kube-node-ready.fullname" . }}
{{- if has $name (list "dns" "api" "network" "service" "peers" "taints" "unverified") }}
{{- fail (printf "the name of the release, %s, is also the value of a failed taint that an agent adds: set fullnameOverride" $name) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Errors that the schema cannot find in what the controller needs. */}}
{{- define "kube-node-ready.validateController" -}}
{{- include "kube-node-ready.validateRetaint" . }}
{{- if .Values.controller.enabled }}
{{- include "kube-node-ready.validateDuration" (list "controller.notStartedAfter" .Values.controller.notStartedAfter "1s" "24h") }}
{{- range $section, $names := dict "retaint" (list "controlGroupFor" "coolDown" "noAgentFor")
  "remediation" (list "deleteAfter" "failedFor" "controlGroupFor") }}
{{- range $names }}
{{- include "kube-node-ready.validateDuration" (list (printf "controller.%s.%s" $section .) (index $.Values.controller $section .) "1s" "24h") }}
{{- end }}
{{- end }}
{{- if gt (include "kube-node-ready.fullname" . | len) 52 }}
{{- include "kube-node-ready.fullname" . | printf "with controller.enabled, the full name %s must have at most 52 characters: set fullnameOverride" | fail }}
{{- end }}
{{- if eq .Values.deploymentMode "controller" }}
{{- include "kube-node-ready.validateRestricted" . }}
{{- end }}
{{- if and (contains "sha256:" .Values.image.tag) (not .Values.controller.image.tag) }}
{{- fail "controller.image.tag is required, because image.tag is the digest of another image" }}
{{- end }}
{{- else if eq .Values.deploymentMode "controller" }}
{{- fail "deploymentMode controller needs controller.enabled: nothing else starts the workers" }}
{{- else if include "kube-node-ready.remediation" . }}
{{- fail (printf "controller.remediation.mode %s needs controller.enabled: nothing else replaces nodes" .Values.controller.remediation.mode) }}
{{- else if .Values.controller.verifyAfterReboot }}
{{- fail "controller.verifyAfterReboot needs controller.enabled: nothing else removes labels" }}
{{- end }}
{{- if and .Values.controller.remediation.deleteNodes (not (include "kube-node-ready.remediation" .)) }}
{{- fail "controller.remediation.deleteNodes needs controller.remediation.mode: nothing else deletes nodes" }}
{{- end }}
{{- end }}
