{{/* What the pods of agents and of workers have in common. */}}
{{- define "kube-node-ready.podSpec" -}}
serviceAccountName: {{ include "kube-node-ready.serviceAccountName" . | quote }}
# Otherwise a Service named `metrics` would set METRICS_PORT in the environment.
enableServiceLinks: false
# The checks must use the pod network.
hostNetwork: false
priorityClassName: {{ .Values.priorityClassName | quote }}
{{- with include "kube-node-ready.imagePullSecrets" . }}
imagePullSecrets:
  {{- . | nindent 2 }}
{{- end }}
securityContext:
  {{- toYaml .Values.podSecurityContext | nindent 2 }}
nodeSelector:
  {{- include "kube-node-ready.nodeSelector" . | nindent 2 }}
affinity:
  {{- include "kube-node-ready.affinity" . | nindent 2 }}
{{- end }}

{{/* What their containers have in common. */}}
{{- define "kube-node-ready.container" -}}
image: {{ include "kube-node-ready.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
# It exits on an invalid setting: show its message in the pod's status.
terminationMessagePolicy: FallbackToLogsOnError
resources:
  {{- toYaml .Values.resources | nindent 2 }}
securityContext:
  {{- toYaml .Values.securityContext | nindent 2 }}
envFrom:
  - configMapRef:
      name: {{ include "kube-node-ready.fullname" . | quote }}
{{- end }}

{{/*
Where the pod runs, as variables. Kubelet does not start a container with NODE_IP before the node has an address, and a cloud
controller may set that late: only where a target needs it.
*/}}
{{- define "kube-node-ready.podVariables" -}}
{{- $fields := dict "NODE_NAME" "spec.nodeName" "POD_NAMESPACE" "metadata.namespace" }}
{{- if contains "$(NODE_IP)" (join "," .Values.config.networkTargets) }}
{{- $_ := set $fields "NODE_IP" "status.hostIP" }}
{{- end }}
{{- range $name, $path := $fields }}
- name: {{ $name }}
  valueFrom:
    fieldRef:
      fieldPath: {{ $path }}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The pod template of the DaemonSet. The controller reads the same template: its labels select the agents, its node rules the nodes. */}}
{{- define "kube-node-ready.agentTemplate" -}}
metadata:
  labels:
    {{- include "kube-node-ready.podLabels" (list . "agent" .Values.podLabels) | nindent 4 }}
  annotations:
    # Changed settings replace the pods.
    checksum/config: {{ include "kube-node-ready.environment" . | sha256sum }}
    {{- with merge (omit (.Values.podAnnotations | default dict) "checksum/config") (include "kube-node-ready.scrapeAnnotations" . | fromYaml) }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  automountServiceAccountToken: true
  terminationGracePeriodSeconds: {{ include "kube-node-ready.gracePeriod" . }}
  {{- include "kube-node-ready.podSpec" . | nindent 2 }}
  tolerations:
    {{- include "kube-node-ready.tolerate" (list . .Values.tolerations) | nindent 4 }}
  containers:
    - name: agent
      {{- include "kube-node-ready.container" . | nindent 6 }}
      env:
        {{- include "kube-node-ready.podVariables" . | trim | nindent 8 }}
      {{- if .Values.config.enableMetrics }}
      ports:
        - name: metrics
          containerPort: {{ .Values.config.metricsPort }}
          protocol: TCP
      # No liveness probe: a restart begins INITIAL_TIMEOUT again, and a node with a broken path from kubelet to pods would never time out.
      {{- $recheck := include "kube-node-ready.recheck" . }}
      {{- if or .Values.readinessProbe.enabled $recheck }}
      # Ready means verified. With rechecks, not ready is what an agent without a path to the API server cannot write. The first probe
      # is late, so that a node that starts well gets no `Unhealthy` Event.
      readinessProbe:
        httpGet:
          path: /readyz
          port: metrics
        initialDelaySeconds: 5
        periodSeconds: {{ $recheck | empty | ternary 5 10 }}
        timeoutSeconds: 2
        failureThreshold: {{ $recheck | empty | ternary 1 2 }}
      {{- end }}
      {{- end }}
{{- end }}

{{/*
The pod template of a worker. The controller adds the name, the owner, the node, and what the worker cannot ask the API for. A worker has
no credential and no volume: kubelet starts it at once, and nothing on an unverified node can change a node.
*/}}
{{- define "kube-node-ready.workerTemplate" -}}
metadata:
  labels:
    {{- include "kube-node-ready.podLabels" (list . "worker" .Values.podLabels) | nindent 4 }}
  annotations:
    {{- merge (dict "cluster-autoscaler.kubernetes.io/safe-to-evict" "true") (.Values.podAnnotations | default dict) | toYaml | nindent 4 }}
spec:
  restartPolicy: Never
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: 5
  {{- include "kube-node-ready.podSpec" . | nindent 2 }}
  tolerations:
    {{- include "kube-node-ready.tolerate" (list . .Values.tolerations) | nindent 4 }}
    # As the DaemonSet controller adds them to its pods.
    {{- range list "not-ready" "unreachable" }}
    - key: node.kubernetes.io/{{ . }}
      operator: Exists
      effect: NoExecute
    {{- end }}
    {{- range list "disk-pressure" "memory-pressure" "pid-pressure" "unschedulable" }}
    - key: node.kubernetes.io/{{ . }}
      operator: Exists
      effect: NoSchedule
    {{- end }}
  containers:
    - name: worker
      args: [--worker]
      {{- include "kube-node-ready.container" . | nindent 6 }}
      env:
        {{- include "kube-node-ready.podVariables" . | trim | nindent 8 }}
        # Kubernetes writes this ConfigMap into every namespace. As a variable, because a volume would delay the start.
        - name: CLUSTER_CA
          valueFrom:
            configMapKeyRef:
              name: kube-root-ca.crt
              key: ca.crt
      ports:
        - name: metrics
          containerPort: {{ .Values.config.metricsPort }}
          protocol: TCP
      # Ready means verified. The worker answers once it knows its verdict: kubelet reports that sooner than an exit.
      readinessProbe:
        httpGet:
          path: /readyz
          port: metrics
        periodSeconds: 1
        timeoutSeconds: 60
        failureThreshold: 1
{{- end }}

{{/* The pods that the controller watches, or in controller mode creates. */}}
{{- define "kube-node-ready.template" -}}
{{- include (eq .Values.deploymentMode "controller" | ternary "kube-node-ready.workerTemplate" "kube-node-ready.agentTemplate") . }}
{{- end }}

{{/* Annotations for a Prometheus without the operator, or nothing. */}}
{{- define "kube-node-ready.scrapeAnnotations" -}}
{{- if .Values.scrapeAnnotations.enabled -}}
prometheus.io/scrape: "true"
prometheus.io/port: {{ .Values.config.metricsPort | quote }}
prometheus.io/path: /metrics
{{- end }}
{{- end }}

{{- define "kube-node-ready.image" -}}
{{- include "kube-node-ready.reference" (list .Values.image.repository (.Values.image.tag | default .Chart.AppVersion)) }}
{{- end }}

{{- define "kube-node-ready.controllerImage" -}}
{{- $image := .Values.controller.image }}
{{- include "kube-node-ready.reference" (list $image.repository ($image.tag | default .Values.image.tag | default .Chart.AppVersion)) }}
{{- end }}

{{/* (list REPOSITORY TAG). A digest follows an @ instead of a colon. */}}
{{- define "kube-node-ready.reference" -}}
{{- printf "%s%s%s" (index . 0) (hasPrefix "sha256:" (index . 1) | ternary "@" ":") (index . 1) }}
{{- end }}

{{/* The chart's pull secrets and the pull secrets of a parent chart, which may be names alone; or nothing. */}}
{{- define "kube-node-ready.imagePullSecrets" -}}
{{- $secrets := .Values.imagePullSecrets | default list }}
{{- range (.Values.global).imagePullSecrets }}
{{- $secrets = kindIs "string" . | ternary (dict "name" .) . | append $secrets }}
{{- end }}
{{- with uniq $secrets }}{{ toYaml . }}{{ end }}
{{- end }}
