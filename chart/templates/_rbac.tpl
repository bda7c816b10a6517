{{/*
Binds an account to the Role of a name and namespace, or without a namespace to the ClusterRole: (list ACCOUNT NAME [NAMESPACE]). ACCOUNT
is (dict "name" NAME "namespace" NAMESPACE "labels" YAML), and may have "annotations" YAML for the binding.
*/}}
{{- define "kube-node-ready.binding" -}}
{{- $account := first . -}}
{{- $name := index . 1 -}}
{{- $namespace := slice . 2 | first -}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ empty $namespace | ternary "ClusterRoleBinding" "RoleBinding" }}
metadata:
  name: {{ quote $name }}
  {{- with $namespace }}
  namespace: {{ quote . }}
  {{- end }}
  labels:
    {{- $account.labels | nindent 4 }}
  {{- with $account.annotations }}
  annotations:
    {{- . | nindent 4 }}
  {{- end }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ empty $namespace | ternary "ClusterRole" "Role" }}
  name: {{ quote $name }}
subjects:
  - kind: ServiceAccount
    name: {{ quote $account.name }}
    namespace: {{ quote $account.namespace }}
{{- end }}

{{/*
The right to list the pods of the DaemonSets that are required: (list ACCOUNT NAME REQUIRE), with ACCOUNT as for binding. RBAC cannot
restrict a list to the pods of one node, or to some of their fields.
*/}}
{{- define "kube-node-ready.requiredPods" -}}
{{- $account := first . }}
{{- $name := index . 1 }}
{{- $namespaces := list }}
{{- range last . }}{{ with .daemonSet }}{{ $namespaces = append $namespaces (dir .) }}{{ end }}{{ end }}
{{- range uniq $namespaces }}
---
# Whether the pods of the DaemonSets in config.require are ready.
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ $name }}
  namespace: {{ quote . }}
  labels:
    {{- $account.labels | nindent 4 }}
rules:
  - apiGroups: [""]
    resources: [pods]
    verbs: [list]
{{ include "kube-node-ready.binding" (list $account $name .) }}
{{- end }}
{{- end }}
