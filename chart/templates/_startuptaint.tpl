{{/*
The startup taint's policy: what the agent's node rules say, in CEL, about a node that registers. Literals are JSON, whose escapes CEL
reads. What cannot be said so fails: a node that no agent may run on must never get the startup taint.
*/}}

{{/* CEL: the taints of the new node. */}}
{{- define "kube-node-ready.celTaints" -}}
object.spec.?taints.orValue([])
{{- end }}

{{/* CEL: a label of the new node, as an optional. */}}
{{- define "kube-node-ready.celLabel" -}}
object.metadata.?labels[?{{ toJson . }}]
{{- end }}

{{/*
A rule must not exclude nodes by a label that they get after they have registered: they would have the startup taint by then, and no
agent. NodeRestriction forbids kubelet most labels of Kubernetes, cloud controllers add zones and instance types, CSI drivers add
topologies, and kubeadm keeps load balancers away from control planes. Labels of others are not known here.
*/}}
{{- define "kube-node-ready.refuseLateLabel" -}}
{{- $late := regexMatch `^(topology\.|([^/]+\.)?(kubernetes|k8s)\.io/)` .key }}
{{- if regexMatch `^((beta\.)?kubernetes\.io/(os|arch)|kubernetes\.io/hostname|(kubelet|node)\.kubernetes\.io/.*)$` .key }}
{{- $late = has .key (list "node.kubernetes.io/instance-type" "node.kubernetes.io/exclude-from-external-load-balancers") }}
{{- end }}
{{- if $late }}
{{- fail (printf "startupTaint.add: affinity: %s %s: a node gets this label after it has registered, so it would have the startup taint and no agent; exclude it by a label that it registers with (kubelet --node-labels)" .key .operator) }}
{{- end }}
{{- end }}

{{/* CEL: the new node meets one of matchExpressions. */}}
{{- define "kube-node-ready.celExpression" -}}
{{- $label := include "kube-node-ready.celLabel" .key }}
{{- if has .operator (list "NotIn" "DoesNotExist") }}
{{- include "kube-node-ready.refuseLateLabel" . }}
{{- end }}
{{- if eq .operator "In" -}}
({{ range $i, $value := .values }}{{ if $i }} || {{ end }}{{ $label }} == optional.of({{ toJson $value }}){{ end }})
{{- else if eq .operator "NotIn" -}}
({{ range $i, $value := .values }}{{ if $i }} && {{ end }}{{ $label }} != optional.of({{ toJson $value }}){{ end }})
{{- else if eq .operator "Exists" -}}
{{ $label }}.hasValue()
{{- else if eq .operator "DoesNotExist" -}}
!{{ $label }}.hasValue()
{{- else if and (eq (len .values) 1) (regexMatch `^(0|-?[1-9][0-9]{0,17})$` (first .values)) -}}
({{ $label }}.orValue("").matches("^-?[0-9]{1,18}$") && int({{ $label }}.orValue("")) {{ eq .operator "Gt" | ternary ">" "<" }} {{ first .values }})
{{- else }}
{{- fail (printf "startupTaint.add: affinity: %s %s needs one integer, not %s" .key .operator (toJson .values)) }}
{{- end }}
{{- end }}

{{/* CEL: the new node meets one of matchFields. */}}
{{- define "kube-node-ready.celField" -}}
{{- if or (ne .key "metadata.name") (not (has .operator (list "In" "NotIn"))) }}
{{- fail (printf "startupTaint.add: affinity: matchFields %s %s: only metadata.name In and NotIn can be asked when a node registers" .key .operator) }}
{{- end }}
{{- eq .operator "NotIn" | ternary "!" "" }}(object.metadata.name in {{ toJson .values }})
{{- end }}

{{/* CEL: the new node matches the pod's required node affinity: all of one term. */}}
{{- define "kube-node-ready.celNodeAffinity" -}}
{{- $terms := list }}
{{- range (include "kube-node-ready.affinity" . | fromYaml).nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms }}
{{- $all := list }}
{{- range .matchExpressions }}{{ $all = include "kube-node-ready.celExpression" . | append $all }}{{ end }}
{{- range .matchFields }}{{ $all = include "kube-node-ready.celField" . | append $all }}{{ end }}
{{- $terms = join " && " $all | printf "(%s)" | append $terms }}
{{- end }}
{{- join " || " $terms }}
{{- end }}

{{/* CEL: the pod tolerates the taint t. */}}
{{- define "kube-node-ready.celTolerates" -}}
{{- $operator := .operator | default "Equal" }}
{{- if not (has $operator (list "Exists" "Equal")) }}
{{- fail (printf "startupTaint.add: tolerations: the operator %s depends on a feature gate: use Exists or Equal" $operator) }}
{{- end }}
{{- $key := .key | empty | ternary "" (toJson .key | printf "t.key == %s") }}
{{- $value := eq $operator "Exists" | ternary "" (.value | default "" | toJson | printf "t.?value.orValue(\"\") == %s") }}
{{- $effect := .effect | empty | ternary "" (toJson .effect | printf "t.effect == %s") }}
{{- list $key $value $effect | compact | join " && " | default "true" | printf "(%s)" }}
{{- end }}

{{/*
CEL: no taint of the new node keeps the pod away for good. The taints of a node that has just started go by themselves, and so do those
that the agent waits for.
*/}}
{{- define "kube-node-ready.celTolerations" -}}
{{- $starting := list "node.cloudprovider.kubernetes.io/uninitialized" }}
{{- range list "not-ready" "unreachable" "network-unavailable" "disk-pressure" "memory-pressure" "pid-pressure" "unschedulable" }}
{{- $starting = append $starting (printf "node.kubernetes.io/%s" .) }}
{{- end -}}
{{ include "kube-node-ready.celTaints" . }}.all(t, t.effect == "PreferNoSchedule" || t.key in {{ toJson $starting }}
{{- range .Values.config.waitForTaints }} || t.key.startsWith({{ toJson . }}){{ end }}
{{- range include "kube-node-ready.tolerate" (list . .Values.tolerations) | fromYamlArray }} || {{ include "kube-node-ready.celTolerates" . }}{{ end }})
{{- end }}
