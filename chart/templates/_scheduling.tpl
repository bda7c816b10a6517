{{/* On which nodes the pods run. */}}

{{- define "kube-node-ready.nodeSelector" -}}
{{- merge (dict "kubernetes.io/os" "linux") (.Values.nodeSelector | default dict) | toYaml }}
{{- end }}

{{/* Requirements for every node that the pod may run on. */}}
{{- define "kube-node-ready.nodeRules" -}}
{{- if eq .Values.deploymentMode "daemonset" }}
# Once the node has the label, the DaemonSet controller deletes the pod. Agents that stay leave out the nodes that were there before.
- key: {{ .Values.config.verifiedLabel | quote }}
  {{- if include "kube-node-ready.recheck" . }}
  operator: NotIn
  values: [preexisting]
  {{- else }}
  operator: DoesNotExist
  {{- end }}
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
