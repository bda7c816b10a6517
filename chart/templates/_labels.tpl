{{/* The labels of the objects and their pods, and what selects them. */}}

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

{{/* The selector's labels for another component: (list . COMPONENT). */}}
{{- define "kube-node-ready.selectorLabelsOf" -}}
{{- merge (dict "app.kubernetes.io/component" (index . 1)) (include "kube-node-ready.selectorLabels" (index . 0) | fromYaml) | toYaml }}
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

{{/* The labels of another component's objects: (list . COMPONENT). */}}
{{- define "kube-node-ready.labelsOf" -}}
{{- include "kube-node-ready.labelsAnd" (list (first .) (dict "app.kubernetes.io/component" (last .))) }}
{{- end }}

{{- define "kube-node-ready.controllerLabels" -}}
{{- include "kube-node-ready.labelsOf" (list . "controller") }}
{{- end }}

{{/* The labels of a pod: (list . COMPONENT LABELS). */}}
{{- define "kube-node-ready.podLabels" -}}
{{- $selecting := include "kube-node-ready.selectorLabelsOf" . | fromYaml }}
{{- merge $selecting (index . 2 | default dict) ((index . 0).Values.commonLabels | default dict) | toYaml }}
{{- end }}
