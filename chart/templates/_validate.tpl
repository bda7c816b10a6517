{{/* What the schema cannot say, because it compares two values, or needs the name of the release or the cluster: every mistake at once. */}}
{{- define "kube-node-ready.validate" -}}
{{- $config := .Values.config }}
{{- $mistakes := include "kube-node-ready.formerObjects" . | trim | list }}
{{- if eq $config.failedTaintKey $config.taintKey }}
{{- $mistakes = printf "config.failedTaintKey %s must differ from config.taintKey" $config.failedTaintKey | append $mistakes }}
{{- end }}
{{- if and .Values.startupTaint.add (ne (include "kube-node-ready.serves" (list . "MutatingAdmissionPolicy" "1.36.0")) "true") }}
{{- $mistakes = printf "startupTaint.add needs MutatingAdmissionPolicy v1 (Kubernetes 1.36), which Kubernetes %s does not serve: let nodes register with the startup taint, or pass --kube-version to helm template"
  .Capabilities.KubeVersion.Version | append $mistakes }}
{{- end }}
{{- $name := include "kube-node-ready.fullname" . }}
{{- if has $name (list "dns" "api" "network" "service" "peers" "taints" "unverified") }}
{{- $mistakes = printf "the release's full name %s is the value of a failed taint that an agent adds: set another fullnameOverride" $name | append $mistakes }}
{{- end }}
{{- if and (or .Values.config.peers .Values.serviceMonitor.enabled) (regexMatch `^[0-9]` $name) }}
{{- $mistakes = printf "the release's full name %s is no name of a Service, which begins with a letter: set fullnameOverride" $name | append $mistakes }}
{{- end }}
{{- range $name := list "podMonitor" "serviceMonitor" }}
{{- with index $.Values $name }}
{{- if and .scrapeTimeout (gt (include "kube-node-ready.seconds" .scrapeTimeout | int) (include "kube-node-ready.seconds" .interval | int)) }}
{{- $mistakes = printf "%s.scrapeTimeout %s must not be longer than its interval %s" $name .scrapeTimeout .interval | append $mistakes }}
{{- end }}
{{- end }}
{{- end }}
{{- $own := list $config.conditionType $config.verifiedLabel
  (printf "%s/%s" (include "kube-node-ready.namespace" .) (include "kube-node-ready.fullname" .)) }}
{{- range $config.require }}
{{- range $kind, $text := omit . "on" "true" }}
{{- if has (regexFind `^[^>=]*` $text) $own }}
{{- $mistakes = printf "config.require: %s %s must not be what the release itself writes or runs: no node would be released" $kind $text | append $mistakes }}
{{- end }}
{{- end }}
{{- end }}
{{- with compact $mistakes | join "\n" }}
{{- /* helm lint only prints this and goes on: it must find what is no YAML. */}}
{{- fail . }}{{ "}" }}
{{- end }}
{{- end }}

{{/* What runs of a former release and must be gone before an upgrade. Only helm install and upgrade see it: elsewhere there is no cluster. */}}
{{- define "kube-node-ready.formerObjects" -}}
{{- $namespace := include "kube-node-ready.namespace" . }}
{{- with lookup "apps/v1" "DaemonSet" $namespace (include "kube-node-ready.fullname" .) }}
{{ if hasKey .spec.selector.matchLabels "app.kubernetes.io/component" -}}
the selector of the DaemonSet {{ .metadata.name }} is that of chart 0.3, and immutable. First run:
  kubectl --namespace {{ $namespace }} delete daemonset {{ .metadata.name }} --cascade=foreground{{ end }}
{{- end }}
{{- /* Before the version is the chart's name or its alias, which has no dot. */}}
{{- with lookup "apps/v1" "Deployment" $namespace (include "kube-node-ready.controllerName" .) }}
{{ if regexMatch `^[^.]+-0\.` (dig "labels" "helm.sh/chart" "" .metadata) -}}
the controller {{ .metadata.name }} of a chart before 1.0 and its Jobs would release nodes beside this one. First run:
  kubectl --namespace {{ $namespace }} delete deployment {{ .metadata.name }} --cascade=foreground
  kubectl --namespace {{ $namespace }} delete jobs --selector app=kube-node-ready,component=worker{{ end }}
{{- end }}
{{- end }}
