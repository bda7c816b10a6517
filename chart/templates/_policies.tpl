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

{{/*
A policy for the nodes that an account may change: the dictionary of `policy` with "root" $ "manager" MANAGER-IN-managedFields
"markers" LIST, and three flags. "ownNode": only the node that the token was issued for (KEP-4193). "release": may remove the startup
taint, and set the label and the annotation; without it, the account may only remove the failed taint. "retaint": may add that to a
verified node. And "unlabel": in CEL, when it may remove the label.
*/}}
{{- define "kube-node-ready.nodePolicy" -}}
{{- $config := .root.Values.config -}}
{{- $may := printf "%s may" .account -}}
{{- $exempt := "; exempt it from webhooks and policies that do" -}}
{{- $hasCondition := has "condition" .markers -}}
{{- $taintKeys := .release | ternary (include "kube-node-ready.taintKeys" .root | fromJsonArray) (list $config.failedTaintKey) -}}
{{- /* The maps of a Node that the account may not change: in CEL; what one key is called; and the keys that have rules of their own. */ -}}
{{- $maps := dict
  "labels" (list "metadata.?labels.orValue({})" "label of a node" (or .release .unlabel | empty | ternary list (list $config.verifiedLabel)))
  "annotations" (list "metadata.?annotations.orValue({})" "annotation of a node" (.release | ternary (list "node-ready/verification") list))
  "spec" (list "?spec.orValue({})" "field of a node's spec" (list "taints"))
  "status" (list "?status.orValue({})" "field of a node's status" ($hasCondition | ternary (list "conditions") list)) -}}
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
{{- /* The fields of the account's own patches, as metadata.managedFields has them. */ -}}
{{- $fields := list "f:spec.f:taints" "f:status.f:conditions.." -}}
{{- range list "." "f:type" "f:status" "f:reason" "f:message" "f:lastHeartbeatTime" "f:lastTransitionTime" -}}
{{- $fields = append $fields (printf "f:status.f:conditions.k:{\"type\":\"%s\"}.%s" $config.conditionType .) -}}
{{- end -}}
{{- /* A client may own a map that is gone, `f:labels: {}`: who adds the first key takes the map over. */ -}}
{{- $fields = or .release .unlabel | empty | ternary $fields (concat $fields (list (printf "f:metadata.f:labels.f:%s" $config.verifiedLabel)
  "f:metadata.f:labels" "f:metadata.f:labels.." "f:metadata.f:annotations" "f:metadata.f:annotations.."
  "f:metadata.f:annotations.f:node-ready/verification")) -}}
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
        has(request.userInfo.extra) && 'authentication.kubernetes.io/node-name' in request.userInfo.extra
        ? request.userInfo.extra['authentication.kubernetes.io/node-name'][0] : ''
    {{- end }}
    # The maps of the Node, before the request and after it, and the keys that it adds, changes or removes.
    {{- range $name, $map := $maps }}
    {{- $new := printf "variables.%s" $name }}
    {{- $old := printf "variables.old%s" (title $name) }}
    - name: {{ $name }}
      expression: dyn(object).{{ first $map }}
    - name: old{{ title $name }}
      expression: dyn(oldObject).{{ first $map }}
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
    {{- if $hasCondition }}
    - name: conditions
      expression: variables.status.?conditions.orValue([])
    - name: oldConditions
      expression: variables.oldStatus.?conditions.orValue([])
    - name: condition
      expression: variables.conditions.filter(c, c.type == '{{ $config.conditionType }}')
    {{- end }}
    # The clients of metadata.managedFields: who, and which fields.
    {{- range $name, $object := dict "managers" "object" "oldManagers" "oldObject" }}
    - name: {{ $name }}
      expression: >-
        dyn({{ $object }}).metadata.?managedFields.orValue([]).map(m, {'id': dyn([m.?manager.orValue(''), m.?operation.orValue(''),
        m.?subresource.orValue(''), m.?apiVersion.orValue('')]), 'fields': m.?fieldsV1.orValue({})})
    {{- end }}
    - name: own
      expression: dyn([['{{ .manager }}', 'Update', '', 'v1'], ['{{ .manager }}', 'Update', 'status', 'v1']])
    - name: ownFields
      expression: dyn(['{{ $fields | join "', '" }}'])
    # The API server merges the oldest of more than ten updating clients into one. No apply uses their fields.
    - name: merged
      expression: >-
        variables.oldManagers.filter(m, m.id[1] == 'Update').size() >= 10 ?
        variables.managers.filter(m, m.id == ['ancient-changes', 'Update', '', 'v1']) : []
    # Each client in both directions: its `fields` must be in one of its `twins`, or `free`. The account's patch takes its own fields, and
    # the list of taints, away from others, and gives none to others. Among merged fields, a map that is also one becomes its own `.`.
    - name: clients
      expression: >-
        variables.oldManagers.filter(m, !(m.id in variables.own) && (m.id[1] == 'Apply' || variables.merged.size() == 0)).map(m,
        {'fields': m.fields, 'twins': dyn(variables.managers.filter(n, n.id == m.id).map(n, n.fields)), 'free': variables.ownFields}) +
        variables.managers.map(n, {'fields': n.fields, 'twins': dyn(variables.oldManagers.filter(m, m.id == n.id ||
        (n in variables.merged && m.id[1] == 'Update')).map(m, m.fields)), 'free': n in variables.merged ?
        variables.ownFields + dyn(['.']) : n.id in variables.own ? variables.ownFields : dyn([])})
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
    - expression: variables.changed{{ title $name }}.all(k, k in {{ last $map | toJson }})
      reason: Forbidden
      message: {{ printf "%s change no %s%s%s" $may (index $map 1)
        (last $map | empty | ternary "" (last $map | join ", " | printf " but %s")) $exempt | quote }}
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
    {{- $removed := .unlabel | empty | ternary "" (printf " remove the label %s only where the annotation names another boot, and"
      $config.verifiedLabel) }}
    - expression: >-
        !({{ $key }} in variables.changedLabels)
        {{- if .release }} || variables.labels[?{{ $key }}] == optional.of(dyn('{{ $config.verifiedLabelValue }}')){{ end }}
        {{- with .unlabel }} ||
        (!({{ $key }} in variables.labels) && {{ . }}){{ end }}
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
    # A client that applies owns what managedFields says: with a foreign field added there, its next apply would remove that field. And
    # what may grow with each patch fills etcd.
    - expression: >-
        variables.managers.all(n, n.id in variables.own || n in variables.merged || variables.oldManagers.exists(m, m.id == n.id)) &&
        variables.clients.all(c, c.fields.all(k, c.twins.exists(t, t[?k][?'.'].or(t[?k]) == optional.of(c.fields[k])) ||
        (c.fields[k].size() > 0 && c.fields[k].all(f, c.twins.exists(t, t[?k][?f][?'.'].or(t[?k][?f]) == optional.of(c.fields[k][f])) ||
        (k + '.' + f in c.free && c.fields[k][f].size() == 0) || (c.fields[k][f].size() > 0 && c.fields[k][f].all(name,
        c.twins.exists(t, t[?k][?f][?name] == optional.of(c.fields[k][f][name])) ||
        ((name in c.free || k + '.' + f + '.' + name in c.free) && c.fields[k][f][name].size() == 0) ||
        (c.fields[k][f][name].size() > 0 && c.fields[k][f][name].all(leaf,
        c.twins.exists(t, t[?k][?f][?name][?leaf] == optional.of(c.fields[k][f][name][leaf])) ||
        (k + '.' + f + '.' + name + '.' + leaf in c.free && c.fields[k][f][name][leaf].size() == 0)))))))))
      reason: Forbidden
      message: {{ printf "%s not change what other clients own in a node's managedFields" $may | quote }}
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
