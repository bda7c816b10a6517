{{/* Keys that the chart does not have, at every level of values.yaml. The schema refuses those inside of a value. */}}
{{- define "kube-node-ready.unknownKeys" -}}
{{- include "kube-node-ready.unknownKeysOf" (dict "values" .Values "section" "" "keys" (.Files.Get "keys.txt" | printf "\n%s")) }}
{{- end }}

{{/* The same for one section, "" or NAME., which keys.txt has like this too. */}}
{{- define "kube-node-ready.unknownKeysOf" -}}
{{- $former := list "daemonset" "metrics" "nodeAffinity" "worker" "config.clusterDNSIP" "controller.config" "controller.health"
  "controller.leaderElection" "controller.metrics" "controller.securityContext" "controller.service" "controller.serviceAccount" }}
{{- range $name, $value := .values }}
{{- $key := printf "%s%s" $.section $name }}
{{- if contains "." $name }}
unknown key {{ $key }}, which has a dot: write its parts as keys of their own
{{- else if contains (printf "\n%s.\n" $key) $.keys }}
{{- include "kube-node-ready.unknownKeysOf" (dict "values" $value "section" (printf "%s." $key) "keys" $.keys) }}
{{- else if has $key $former }}
{{ with $value }}former key {{ $key }}: "Upgrade from 0.x" in chart/README.md says what to set instead{{ end }}
{{- else if not (contains (printf "\n%s\n" $key) $.keys) }}
unknown key {{ $key }}{{ include "kube-node-ready.didYouMean" (list $.section $name $.keys) }}
{{- end }}
{{- end }}
{{- end }}

{{/*
The nearest key, as a question, or nothing: (list SECTION NAME KEYS). A name of the section is near if both begin and end alike, with half
of the shorter one's letters; case, - and _ do not count. Else the same name in another section is.
*/}}
{{- define "kube-node-ready.didYouMean" -}}
{{- $section := first . }}
{{- $wrong := index . 1 | lower | replace "-" "" | replace "_" "" }}
{{- $nearest := "" }}
{{- $best := -1000 }}
{{- range $key := last . | splitList "\n" | compact }}
{{- $key = trimSuffix "." $key }}
{{- $name := regexFind `[^.]+$` $key | lower }}
{{- $begin := 0 }}{{ $end := 0 }}
{{- range $n := len $name | add1 | int | until }}
{{- if hasPrefix (trunc $n $name) $wrong }}{{ $begin = $n }}{{ end }}
{{- if hasSuffix (trunc (mul -1 $n | int) $name) $wrong }}{{ $end = $n }}{{ end }}
{{- end }}
{{- $alike := min (add $begin $end) (len $name) (len $wrong) }}
{{- $score := sub (mul 2 $alike) (max (len $name) (len $wrong)) }}
{{- $isNear := ge (mul 2 $alike) (min (len $name) (len $wrong)) }}
{{- if ne $section (regexReplaceAll `[^.]+$` $key "") }}
{{- $isNear = eq $name $wrong }}
{{- $score = -100 }}
{{- end }}
{{- if and $isNear (gt $score $best) }}{{ $best = $score }}{{ $nearest = $key }}{{ end }}
{{- end }}
{{- with $nearest }}; did you mean {{ . }}?{{ end }}
{{- end }}

{{/* Images of the charts before 1.0. */}}
{{- define "kube-node-ready.formerImages" -}}
{{- range $name, $image := dict "image" .Values.image "controller.image" .Values.controller.image }}
{{ if regexMatch `:[^/]*$` $image.repository -}}
{{ $name }}.repository {{ $image.repository }} must not have a tag: set {{ $name }}.tag, or leave it empty for the chart's appVersion
{{- end }}
{{ if regexMatch `^[vV]?0([._-]|$)` $image.tag -}}
{{ $name }}.tag {{ $image.tag }} is an image from before 1.0: leave it empty, for the chart's appVersion
{{- end }}
{{- end }}
{{- $repository := .Values.controller.image.repository }}
{{ if and .Values.controller.enabled (or (eq $repository .Values.image.repository) (regexMatch `(^|/)kube-node-ready$` $repository)) -}}
controller.image.repository {{ $repository }} is the agent's since 1.0: set ghcr.io/imunhatep/kube-node-ready-controller, or its mirror{{ end }}
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
