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
