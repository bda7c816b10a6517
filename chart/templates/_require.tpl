{{/*
The right to list the pods of the DaemonSets that are required: as for binding, but for the namespace. RBAC cannot restrict a list to the
pods of one node, or to some of their fields.
*/}}
{{- define "kube-node-ready.requiredPods" -}}
{{- $namespaces := list }}
{{- range .root.Values.config.require }}{{ with .daemonSet }}{{ $namespaces = append $namespaces (dir .) }}{{ end }}{{ end }}
{{- range uniq $namespaces }}
---
# Whether the pods of the DaemonSets in config.require are ready.
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ $.name }}
  namespace: {{ quote . }}
  labels:
    {{- $.labels | nindent 4 }}
rules:
  - apiGroups: [""]
    resources: [pods]
    verbs: [list]
{{ include "kube-node-ready.binding" (merge (dict "namespace" .) $) }}
{{- end }}
{{- end }}

{{/* The pattern is the agent's: a test of internal/requirement compares them. */}}
{{- define "kube-node-ready.requireMistakes" -}}
{{- $own := list .Values.config.conditionType .Values.config.verifiedLabel
  (printf "%s/%s" (include "kube-node-ready.namespace" .) (include "kube-node-ready.fullname" .)) }}
{{- $seen := list }}
{{- range .Values.config.require }}
{{- $text := "" }}
{{- $name := "" }}
{{- $on := .on | default (index . "true") | default dict }}
{{- range $kind, $value := omit . "on" "true" }}
{{- $text = printf "%s%s %v" $text $kind $value }}
{{- $name = splitList "=" $value | first }}
{{- end }}
{{- range $key, $value := $on }}{{ $text = printf "%s on %s=%v" $text $key $value }}{{ end }}
{{- if or (ne (splitList " on " $text | len) ($on | len | add1 | int)) (not (regexMatch `^(condition ([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?=(True|False|Unknown)|allocatable (cpu|memory|pods|ephemeral-storage|hugepages-[1-9][0-9]*[KMG]i|attachable-volumes-[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?|[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)(>=[1-9][0-9]*(m|[kMGTPE]|[KMGTPE]i)?)?|csiDriver [A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?|label ([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?|daemonSet [a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?/[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*)( on ([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?=([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?)*$` $text)) }}
config.require: {{ quote $text }} must be one of condition: TYPE=True (or False, Unknown); allocatable: RESOURCE or RESOURCE>=QUANTITY; csiDriver: NAME; label: KEY; daemonSet: NAMESPACE/NAME; each may have on: {LABEL: VALUE}
{{- else if has $text $seen }}
config.require: {{ quote $text }} is there twice
{{- else if has $name $own }}
config.require: {{ quote $text }} must not be what the release itself writes or runs: no node would be released
{{- end }}
{{- $seen = append $seen $text }}
{{- end }}
{{- end }}
