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
"markers" LIST, and three flags. "ownNode": only the node
that the token was issued for (KEP-4193). "release": may remove the startup taint, and set the label and the annotation; without it,
the account may only remove the failed taint. "retaint": may add that to a verified node. And "unlabel": in CEL, when it may remove the label k.
*/}}
{{- define "kube-node-ready.nodePolicy" -}}
{{- $config := .root.Values.config -}}
{{- $taintKeys := .release | ternary (include "kube-node-ready.taintKeys" .root | fromJsonArray) (list $config.failedTaintKey) -}}
{{- /* `kind` and `key` of each map of which the account owns one key. */ -}}
{{- $owned := dict "label" $config.verifiedLabel "annotation" "node-ready/verification" -}}
{{- /* The fields of the account's own patches, as metadata.managedFields has them. */ -}}
{{- $fields := list "f:spec.f:taints" "f:status.f:conditions.." -}}
{{- range list "." "f:type" "f:status" "f:reason" "f:message" "f:lastHeartbeatTime" "f:lastTransitionTime" -}}
{{- $fields = append $fields (printf "f:status.f:conditions.k:{\"type\":\"%s\"}.%s" $config.conditionType .) -}}
{{- end -}}
{{- /* A client may own a map that is gone, `f:labels: {}`: who adds the first key takes the map over. */ -}}
{{- $fields = or .release .unlabel | empty | ternary $fields (concat $fields (list (printf "f:metadata.f:labels.f:%s" $config.verifiedLabel)
  "f:metadata.f:labels" "f:metadata.f:labels.." "f:metadata.f:annotations" "f:metadata.f:annotations.."
  "f:metadata.f:annotations.f:node-ready/verification")) -}}
{{- $hint := ". A mutating webhook or policy may have added more to its request: let that exempt the account, or match CREATE only" -}}
{{- $unlabeled := .unlabel | empty | ternary "" (printf ", but remove the label %s where the annotation names another boot" $config.verifiedLabel) -}}
{{- /* Where the account may add the failed taint: in CEL, and in words. */ -}}
{{- $mayFail := "" -}}{{- $failed := "" -}}
{{- if has "taint" .markers -}}
{{- $mayFail = printf "variables.taints.exists(s, s.key == '%s')" $config.taintKey -}}
{{- $failed = printf " put on %s:NoSchedule beside %s," $config.failedTaintKey $config.taintKey -}}
{{- else if .retaint -}}
{{- $value := include "kube-node-ready.fullname" .root -}}
{{- $mayFail = printf "t.?value.orValue('') == '%s' && variables.mayRetaint" $value -}}
{{- $failed = printf " put on %s=%s:NoSchedule where %s is %q, without %s, and not on a control plane or etcd server," $config.failedTaintKey $value
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
        has(request.userInfo.extra) && 'authentication.kubernetes.io/node-name' in request.userInfo.extra
        ? request.userInfo.extra['authentication.kubernetes.io/node-name'][0] : ''
    {{- end }}
    {{- range $kind, $path := dict "taints" "?spec.?taints.orValue([])" "labels" "metadata.?labels.orValue({})"
      "annotations" "metadata.?annotations.orValue({})" }}
    - name: {{ $kind }}
      expression: dyn(object).{{ $path }}
    - name: old{{ title $kind }}
      expression: dyn(oldObject).{{ $path }}
    {{- end }}
    {{- if .retaint }}
    - name: mayRetaint
      expression: >-
        variables.oldLabels[?'{{ $config.verifiedLabel }}'] == optional.of(dyn('{{ $config.verifiedLabelValue }}')) &&
        !variables.oldTaints.exists(s, s.key == '{{ $config.taintKey }}') && {{ include "kube-node-ready.notControlPlane" . }}
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
    {{- if has "condition" .markers }}
    - name: status
      expression: dyn(object).?status.orValue({})
    - name: oldStatus
      expression: dyn(oldObject).?status.orValue({})
    - name: condition
      expression: variables.status.?conditions.orValue([]).filter(c, c.type == '{{ $config.conditionType }}')
    {{- end }}
  # Forbidden instead of the default 422: for the agent, a 422 means that the node has changed.
  validations:
    {{- if .ownNode }}
    - expression: variables.node != ''
      reason: Forbidden
      message: {{ printf "%s may change a node only with a token that is bound to a pod on it: this token names no node" .account | quote }}
    - expression: variables.node == request.name
      reason: Forbidden
      messageExpression: >-
        '{{ .account }} may change only its own node: this token is for node "' + variables.node + '", the request for "' + request.name + '"'
    {{- end }}
    {{- if has "condition" .markers }}
    - expression: "!has(request.subResource) || request.subResource in ['', 'status']"
      reason: Forbidden
      messageExpression: "'{{ .account }} may change the node and its condition {{ $config.conditionType }}, not nodes/' + request.subResource"
    - expression: >-
        variables.status.all(k, k == 'conditions' || (k in variables.oldStatus && variables.status[k] == variables.oldStatus[k])) &&
        variables.oldStatus.all(k, k == 'conditions' || k in variables.status) &&
        variables.status.?conditions.orValue([]).filter(c, c.type != '{{ $config.conditionType }}') ==
        variables.oldStatus.?conditions.orValue([]).filter(c, c.type != '{{ $config.conditionType }}')
      reason: Forbidden
      message: {{ printf "%s may set the condition %s, and change nothing else in a node's status%s" .account $config.conditionType $hint | quote }}
    # A condition that another account has written so before does not block the release.
    - expression: >-
        variables.condition == variables.oldStatus.?conditions.orValue([]).filter(c, c.type == '{{ $config.conditionType }}') ||
        (variables.condition.size() <= 1 && variables.condition.all(c, c.status in ['True', 'False', 'Unknown'] &&
        size(c.?reason.orValue('')) + size(c.?message.orValue('')) <= 2048))
      reason: Forbidden
      message: {{ printf "%s may set the condition %s once, to True, False or Unknown, with at most 2048 characters" .account $config.conditionType | quote }}
    {{- else }}
    - expression: "!has(request.subResource) || request.subResource == ''"
      reason: Forbidden
      messageExpression: "'{{ .account }} may change the node itself, not nodes/' + request.subResource"
    {{- end }}
    # Foreign taints and their order must not change. Each of these taints may be removed, whatever the other values are.
    - expression: >-
        variables.taints.filter(t, t in variables.oldTaints) == variables.oldTaints.filter(t, t in variables.taints) &&
        variables.oldTaints.all(t, t in variables.taints || t.key in ['{{ $taintKeys | join "', '" }}']) &&
        variables.taints.all(t, t in variables.oldTaints
        {{- with $mayFail }} || (t.key == '{{ $config.failedTaintKey }}' && t.effect == 'NoSchedule' &&
        {{ . }})
        {{- end }})
      reason: Forbidden
      message: {{ printf "%s may take off the taint%s %s,%s and change no other taint%s" .account (.release | ternary "s" "") ($taintKeys | join ", ") $failed $hint | quote }}
    {{- if not .release }}
    - expression: >-
        {{ with .unlabel }}variables.labels.all(k, variables.oldLabels[?k] == optional.of(variables.labels[k])) && variables.oldLabels.all(k,
        k in variables.labels || ({{ . }})){{ else }}variables.labels == variables.oldLabels{{ end }} && variables.annotations == variables.oldAnnotations
      reason: Forbidden
      message: {{ printf "%s may change no label or annotation of a node%s%s" .account $unlabeled $hint | quote }}
    {{- end }}
    - expression: >-
        dyn(object.spec).all(k, k == 'taints' || (k in dyn(oldObject.spec) && dyn(object.spec)[k] == dyn(oldObject.spec)[k])) &&
        dyn(oldObject.spec).all(k, k == 'taints' || k in dyn(object.spec))
      reason: Forbidden
      message: {{ printf "%s may change nothing in a node's spec but its taints%s" .account $hint | quote }}
    {{- if .release }}
    {{- range $kind, $key := $owned }}
    - expression: >-
        variables.{{ $kind }}s.all(k, k == '{{ $key }}' || (k in variables.old{{ title $kind }}s && variables.{{ $kind }}s[k] == variables.old{{ title $kind }}s[k])) &&
        variables.old{{ title $kind }}s.all(k, k in variables.{{ $kind }}s{{ if and $.unlabel (eq $kind "label") }} || ({{ $.unlabel }}){{ end }})
      reason: Forbidden
      message: {{ printf "%s may set the %s %s, and change no other %s%s%s" $.account $kind $key $kind (eq $kind "label" | ternary $unlabeled "") $hint | quote }}
    {{- end }}
    - expression: >-
        !('{{ $config.verifiedLabel }}' in variables.labels) || variables.labels['{{ $config.verifiedLabel }}'] == '{{ $config.verifiedLabelValue }}' ||
        variables.labels['{{ $config.verifiedLabel }}'] == variables.oldLabels[?'{{ $config.verifiedLabel }}'].orValue('')
      reason: Forbidden
      message: {{ printf "%s may set the label %s to %q only" .account $config.verifiedLabel (toString $config.verifiedLabelValue) | quote }}
    - expression: >-
        variables.annotations[?'node-ready/verification'] == variables.oldAnnotations[?'node-ready/verification'] ||
        size(variables.annotations[?'node-ready/verification'].orValue('')) <= 16384
      reason: Forbidden
      message: {{ printf "%s may set the annotation node-ready/verification to at most 16384 characters" .account | quote }}
    {{- end }}
    # The garbage collector would delete a node whose owner does not exist.
    - expression: >-
        dyn(object).metadata.?ownerReferences.orValue([]) == dyn(oldObject).metadata.?ownerReferences.orValue([]) &&
        dyn(object).metadata.?finalizers.orValue([]) == dyn(oldObject).metadata.?finalizers.orValue([]) &&
        dyn(object).metadata.?generateName.orValue('') == dyn(oldObject).metadata.?generateName.orValue('')
      reason: Forbidden
      message: {{ printf "%s may not change a node's owners, finalizers or generateName%s" .account $hint | quote }}
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
      message: {{ printf "%s may not change what other clients own in a node's managedFields%s" .account $hint | quote }}
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
