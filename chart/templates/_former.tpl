{{/* The keys of the charts 0.1 to 0.5 that this chart does not have. The schema admits them: this error says where to read on. */}}
{{- define "kube-node-ready.validateFormerValues" -}}
{{- $found := list }}
{{- range $section, $keys := dict "" (list "daemonset" "metrics" "nodeAffinity" "worker") "config" (list "clusterDNSIP")
  "controller" (list "config" "health" "leaderElection" "metrics" "securityContext" "service" "serviceAccount") }}
{{- range $keys }}
{{- if get ($section | empty | ternary $.Values (get $.Values $section)) . }}
{{- $found = append $found (printf "%s.%s" $section . | trimPrefix ".") }}
{{- end }}
{{- end }}
{{- end }}
{{- with $found }}
{{- fail (printf "values of a chart before 1.0: %s: \"Upgrade from 0.x\" in chart/README.md says what to set instead" (join ", " .)) }}
{{- end }}
{{- end }}

{{/* Images of the charts before 1.0. */}}
{{- define "kube-node-ready.validateFormerImages" -}}
{{- range $name, $image := dict "image" .Values.image "controller.image" .Values.controller.image }}
{{- if regexMatch `:[^/]*$` $image.repository }}
{{- fail (printf "%s.repository %s must not have a tag: set %s.tag, or leave it empty for the chart's appVersion" $name $image.repository $name) }}
{{- end }}
{{- if regexMatch `^[vV]?0([._-]|$)` $image.tag }}
{{- fail (printf "%s.tag %s is an image from before 1.0: leave it empty, for the chart's appVersion" $name $image.tag) }}
{{- end }}
{{- end }}
{{- $repository := .Values.controller.image.repository }}
{{- if and .Values.controller.enabled (or (eq $repository .Values.image.repository) (regexMatch `(^|/)kube-node-ready$` $repository)) }}
{{- fail (printf "controller.image.repository %s is the agent's since 1.0: set ghcr.io/imunhatep/kube-node-ready-controller, or its mirror" $repository) }}
{{- end }}
{{- end }}

{{/* What runs of a former release and must be gone before an upgrade. Only helm install and upgrade see it: elsewhere there is no cluster. */}}
{{- define "kube-node-ready.validateFormerObjects" -}}
{{- $namespace := include "kube-node-ready.namespace" . }}
{{- with lookup "apps/v1" "DaemonSet" $namespace (include "kube-node-ready.fullname" .) }}
{{- if hasKey .spec.selector.matchLabels "app.kubernetes.io/component" }}
{{- fail (printf "the selector of the DaemonSet %s is that of chart 0.3, and immutable. First run:\n  kubectl --namespace %s delete daemonset %s --cascade=foreground" .metadata.name $namespace .metadata.name) }}
{{- end }}
{{- end }}
{{- /* Before the version is the chart's name or its alias, which has no dot. */}}
{{- with lookup "apps/v1" "Deployment" $namespace (include "kube-node-ready.controllerName" .) }}
{{- if regexMatch `^[^.]+-0\.` (dig "labels" "helm.sh/chart" "" .metadata) }}
{{- fail (printf "the controller %s of a chart before 1.0 and its Jobs would release nodes beside this one. First run:\n  kubectl --namespace %s delete deployment %s --cascade=foreground\n  kubectl --namespace %s delete jobs --selector app=kube-node-ready,component=worker" .metadata.name $namespace .metadata.name $namespace) }}
{{- end }}
{{- end }}
{{- end }}
