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
