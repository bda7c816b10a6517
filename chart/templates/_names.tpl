{{/* The names of the objects, and where they are. */}}

{{- define "kube-node-ready.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* The release name alone if it contains the chart's name; without dots, and cut so that what is added to it fits into 63 characters. */}}
{{- define "kube-node-ready.fullname" -}}
{{- $name := include "kube-node-ready.name" . }}
{{- $name = contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name) | replace "." "-" }}
{{- default $name .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- end }}

{{/* Where the objects are. */}}
{{- define "kube-node-ready.namespace" -}}
{{- .Values.namespaceOverride | default .Release.Namespace }}
{{- end }}

{{/* A name is required: with the account `default`, every pod of the namespace could patch nodes. */}}
{{- define "kube-node-ready.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "kube-node-ready.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{/* Name of the controller's objects. */}}
{{- define "kube-node-ready.controllerName" -}}
{{- printf "%s-controller" (include "kube-node-ready.fullname" .) }}
{{- end }}

{{- define "kube-node-ready.peersName" -}}
{{- printf "%s-peers" (include "kube-node-ready.fullname" .) }}
{{- end }}

{{/* Name of the policy that adds the startup taint, and of its binding. */}}
{{- define "kube-node-ready.startupTaintName" -}}
{{- printf "%s-startup-taint" (include "kube-node-ready.fullname" .) }}
{{- end }}

{{/* What runs pods, with the name of its objects, as a JSON list. */}}
{{- define "kube-node-ready.components" -}}
{{- $onNodes := eq .Values.deploymentMode "controller" | ternary "worker" "agent" }}
{{- $components := list (dict "component" $onNodes "name" (include "kube-node-ready.fullname" .)) }}
{{- if .Values.controller.enabled }}
{{- $components = append $components (dict "component" "controller" "name" (include "kube-node-ready.controllerName" .)) }}
{{- end }}
{{- toJson $components }}
{{- end }}
