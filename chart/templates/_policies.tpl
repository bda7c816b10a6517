{{/* How each policy for an account begins: (dict "name" NAME "labels" YAML "account" NAMESPACE/NAME "condition" NAME-OF-THE-MATCH-CONDITION). */}}
{{- define "kube-node-ready.policy" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {{ quote .name }}
  labels:
    {{- .labels | nindent 4 }}
spec:
  failurePolicy: Fail
  matchConditions:
    # Requests of all other accounts, another release's included, are not evaluated.
    - name: {{ .condition }}
      expression: request.userInfo.username == 'system:serviceaccount:{{ .account | replace "/" ":" }}'
{{- end }}

{{/* CEL: the node has no role of the control plane or etcd, as label or taint. fleet.IsControlPlane has the same roles. */}}
{{- define "kube-node-ready.notControlPlane" -}}
['node-role.kubernetes.io/control-plane', 'node-role.kubernetes.io/etcd', 'node-role.kubernetes.io/master'].all(role,
        !(role in variables.oldLabels) && !variables.oldTaints.exists(s, s.key == role))
{{- end }}

{{/* A validation: what its owner protects is not deleted (dict "account" NAMESPACE/NAME "kind" KIND). */}}
{{- define "kube-node-ready.spareProtected" -}}
- expression: >-
    ['karpenter.sh/do-not-disrupt', 'node-ready/do-not-delete'].all(key,
    !(key in dyn(oldObject).metadata.?annotations.orValue({})) && !(key in dyn(oldObject).metadata.?labels.orValue({})))
  reason: Forbidden
  message: {{ printf "%s may delete no %s with karpenter.sh/do-not-disrupt or node-ready/do-not-delete" .account .kind | quote }}
{{- end }}

{{/* CEL: the node that the request's token was issued for (KEP-4193), '' if for none. */}}
{{- define "kube-node-ready.tokenNode" -}}
has(request.userInfo.extra) && 'authentication.kubernetes.io/node-name' in request.userInfo.extra
        ? request.userInfo.extra['authentication.kubernetes.io/node-name'][0] : ''
{{- end }}

{{/*
A policy for the nodes that an account may change: the dictionary of `policy` with "root" $, "markers" LIST, and four flags.
"ownNode": only the node that the token was issued for. "release": may remove the startup taint, and set the label and the annotation;
without it, the account may only remove the failed taint. "retaint": may add that to a verified node. "unlabel": may remove the label
of a node that was started again.
*/}}
{{- define "kube-node-ready.nodePolicy" -}}
{{- $config := .root.Values.config -}}
{{- $may := printf "%s may" .account -}}
{{- $exempt := "; exempt it from webhooks and policies that do" -}}
{{- $hasCondition := has "condition" .markers -}}
{{- $taintKeys := .release | ternary (include "kube-node-ready.taintKeys" .root | fromJsonArray) (list $config.failedTaintKey) -}}
{{- /* The maps of a Node that the account may not change: in CEL; what one key is called; and the keys that have a validation of their own. */ -}}
{{- $labels := or .release .unlabel | ternary (list $config.verifiedLabel) list -}}
{{- $annotations := .release | ternary (list "node-ready/verification") list -}}
{{- $conditions := $hasCondition | ternary (list "conditions") list -}}
{{- $maps := dict
  "labels" (dict "cel" "metadata.?labels.orValue({})" "key" "label of a node" "but" $labels)
  "annotations" (dict "cel" "metadata.?annotations.orValue({})" "key" "annotation of a node" "but" $annotations)
  "spec" (dict "cel" "?spec.orValue({})" "key" "field of a node's spec" "but" (list "taints"))
  "status" (dict "cel" "?status.orValue({})" "key" "field of a node's status" "but" $conditions) -}}
{{- /* Which taint t the account may add: in CEL, and in words. */ -}}
{{- $mayAdd := "" -}}{{- $added := "" -}}
{{- if has "taint" .markers -}}
{{- $mayAdd = printf "variables.taints.exists(s, s.key == '%s')" $config.taintKey -}}
{{- $added = printf " but %s:NoSchedule beside %s" $config.failedTaintKey $config.taintKey -}}
{{- else if .retaint -}}
{{- $value := include "kube-node-ready.fullname" .root -}}
{{- $mayAdd = printf "t.?value.orValue('') == '%s' && variables.mayRetaint" $value -}}
{{- $added = printf " but %s=%s:NoSchedule where %s is %q, without %s, and not on a control plane or etcd server" $config.failedTaintKey $value
  $config.verifiedLabel (toString $config.verifiedLabelValue) $config.taintKey -}}
{{- end -}}
{{ include "kube-node-ready.policy" . }}
  matchConstraints:
    resourceRules:
      - apiGroups: [""]
        apiVersions: [v1]
        operations: [UPDATE]
        resources: [nodes, nodes/*]
  # dyn: compare the fields as sent, without the API server's schema.
  variables:
    {{- if .ownNode }}
    - name: node
      expression: >-
        {{ include "kube-node-ready.tokenNode" . }}
    {{- end }}
    # The maps of the Node, before the request and after it, and the keys that it adds, changes or removes.
    {{- range $name, $map := $maps }}
    {{- $new := printf "variables.%s" $name }}
    {{- $old := printf "variables.old%s" (title $name) }}
    - name: {{ $name }}
      expression: dyn(object).{{ $map.cel }}
    - name: old{{ title $name }}
      expression: dyn(oldObject).{{ $map.cel }}
    - name: changed{{ title $name }}
      expression: >-
        {{ $new }} == {{ $old }} ? [] :
        {{ $new }}.filter(k, {{ $new }}[?k] != {{ $old }}[?k]) + {{ $old }}.filter(k, !(k in {{ $new }}))
    {{- end }}
    - name: taints
      expression: variables.spec.?taints.orValue([])
    - name: oldTaints
      expression: variables.oldSpec.?taints.orValue([])
    {{- if .retaint }}
    - name: mayRetaint
      expression: >-
        variables.oldLabels[?'{{ $config.verifiedLabel }}'] == optional.of(dyn('{{ $config.verifiedLabelValue }}')) &&
        !variables.oldTaints.exists(s, s.key == '{{ $config.taintKey }}') && {{ include "kube-node-ready.notControlPlane" . }}
    {{- end }}
    {{- if .unlabel }}
    # The annotation names a boot, and the node another one.
    - name: record
      expression: variables.oldAnnotations[?'node-ready/verification'].orValue('')
    - name: bootID
      expression: variables.oldStatus.?nodeInfo.?bootID.orValue('')
    - name: wasRestarted
      expression: >-
        variables.bootID != '' && variables.record.contains('"bootID":"') && !variables.record.contains('"bootID":"' + variables.bootID + '"')
    {{- end }}
    {{- if $hasCondition }}
    - name: conditions
      expression: variables.status.?conditions.orValue([])
    - name: oldConditions
      expression: variables.oldStatus.?conditions.orValue([])
    - name: condition
      expression: variables.conditions.filter(c, c.type == '{{ $config.conditionType }}')
    {{- end }}
  # Forbidden instead of the default 422: for the agent, a 422 means that the node has changed.
  validations:
    {{- if .ownNode }}
    - expression: variables.node == request.name
      reason: Forbidden
      messageExpression: >-
        '{{ $may }} change only the node that its token was issued for: the token names "' + variables.node +
        '", the request "' + request.name + '"'
    {{- end }}
    # The request also has what webhooks and other policies change: docs/security.md.
    {{- range $name, $map := $maps }}
    {{- $but := empty $map.but | ternary "" (printf " but %s" (join ", " $map.but)) }}
    - expression: variables.changed{{ title $name }}.all(k, k in {{ toJson $map.but }})
      reason: Forbidden
      message: {{ printf "%s change no %s%s%s" $may $map.key $but $exempt | quote }}
    {{- end }}
    # The garbage collector would delete a node whose owner does not exist.
    - expression: >-
        ['ownerReferences', 'finalizers', 'generateName'].all(k, dyn(object).metadata[?k] == dyn(oldObject).metadata[?k])
      reason: Forbidden
      message: {{ printf "%s not change a node's ownerReferences, finalizers and generateName%s" $may $exempt | quote }}
    - expression: >-
        variables.taints.filter(t, !(t.key in {{ toJson $taintKeys }})) ==
        variables.oldTaints.filter(t, !(t.key in {{ toJson $taintKeys }}))
      reason: Forbidden
      message: {{ printf "%s add, change, remove or move no taint but %s" $may (join ", " $taintKeys) | quote }}
    - expression: >-
        variables.taints.all(t, t in variables.oldTaints
        {{- with $mayAdd }} ||
        (t.key == '{{ $config.failedTaintKey }}' && t.effect == 'NoSchedule' && {{ . }})
        {{- end }})
      reason: Forbidden
      message: {{ printf "%s add or change no taint%s" $may $added | quote }}
    {{- if or .release .unlabel }}
    {{- $key := printf "'%s'" $config.verifiedLabel }}
    {{- $set := .release | ternary (printf "the label %s to %q only" $config.verifiedLabel (toString $config.verifiedLabelValue)) "no label" }}
    {{- $removed := .unlabel | ternary (printf " remove the label %s only where the annotation names another boot, and"
      $config.verifiedLabel) "" }}
    - expression: >-
        !({{ $key }} in variables.changedLabels)
        {{- if .release }} || variables.labels[?{{ $key }}] == optional.of(dyn('{{ $config.verifiedLabelValue }}')){{ end }}
        {{- if .unlabel }} || (!({{ $key }} in variables.labels) && variables.wasRestarted){{ end }}
      reason: Forbidden
      message: {{ printf "%s%s set %s" $may $removed $set | quote }}
    {{- end }}
    {{- if .release }}
    - expression: >-
        !('node-ready/verification' in variables.changedAnnotations) || ('node-ready/verification' in variables.annotations &&
        size(variables.annotations['node-ready/verification']) <= 16384)
      reason: Forbidden
      message: {{ printf "%s set the annotation node-ready/verification to at most 16384 characters, and not remove it" $may | quote }}
    {{- end }}
    {{- if $hasCondition }}
    - expression: >-
        variables.conditions.filter(c, c.type != '{{ $config.conditionType }}') ==
        variables.oldConditions.filter(c, c.type != '{{ $config.conditionType }}')
      reason: Forbidden
      message: {{ printf "%s change no condition but %s" $may $config.conditionType | quote }}
    # A condition that another account has written so before does not block the release.
    - expression: >-
        variables.condition == variables.oldConditions.filter(c, c.type == '{{ $config.conditionType }}') || (variables.condition.size() <= 1 &&
        variables.condition.all(c, c.status in ['True', 'False', 'Unknown'] && size(c.?reason.orValue('')) + size(c.?message.orValue('')) <= 2048))
      reason: Forbidden
      message: {{ printf "%s set the condition %s once, to True, False or Unknown, with at most 2048 characters" $may $config.conditionType | quote }}
    {{- end }}
{{- end }}

{{- define "kube-node-ready.policyBinding" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ quote .name }}
  labels:
    {{- .labels | nindent 4 }}
spec:
  policyName: {{ quote .name }}
  validationActions: [Deny]
{{- end }}
