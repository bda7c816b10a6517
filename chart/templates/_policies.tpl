{{/*
The parts of the ValidatingAdmissionPolicies. A file with a policy reads from top to bottom: the account and the objects that it matches,
its variables, and its validations. Each `forbid.…` below is one validation, and is named after what it forbids.

ACCOUNT is (dict "name" NAMESPACE/NAME "who" "the-agent" "labels" YAML "config" .Values.config): "who" is the name of the match condition,
"labels" are the labels of the policy and of its binding.

What each policy forbids to its account. RELEASE is the fullname, CONTROLLER is the controllerName. hack/docs/policies_test.go compares the
files and the names with the templates.

  nodeauthorization.yaml            RELEASE                 changes of Nodes: see the table below, first column
  nodeauthorization.yaml            RELEASE-events          Events about anything but its own node, of another component, or that are large
  controller/deletionpolicy.yaml    CONTROLLER-nodeclaims   to delete NodeClaims that Karpenter has initialized, or that are protected
  controller/deletionpolicy.yaml    CONTROLLER-nodes        to delete Nodes that are not gated, were verified, whose condition is not False, that are
                                                            of a control plane, etcd or Karpenter, or protected
  controller/newworkerspolicy.yaml  CONTROLLER-new-workers  to create pods unlike the chart's workers (controller mode)
  controller/nodepolicy.yaml        CONTROLLER              changes of Nodes: see the table below, second and third column
  controller/objectpolicy.yaml      CONTROLLER-objects      to create another ConfigMap than the ledger and another Lease than its own; Events about
                                                            anything but Nodes, its Deployment and its Lease
  controller/workerspolicy.yaml     CONTROLLER-workers      all but to delete this release's agents and workers (controller mode: all but to create
                                                            and delete its workers)

Protected objects have karpenter.sh/do-not-disrupt or node-ready/do-not-delete.

Changes of a Node that are forbidden to each account; "yes" is without an exception:

                     the agent                          the controller                           the controller in controller mode
  otherNodes         yes
  changesBut         label, annotation, taints,         taints, conditions,                      label, annotation, taints,
                     conditions (with a marker)         label (verifyAfterReboot)                conditions
  owners             yes                                yes                                      yes
  foreignTaints      but our taints                     but the failed taint                     but our taints
  newTaints          but the failed taint beside the    but the failed taint on verified         yes
                     startup taint (onTimeout: taint)   nodes (retaint.enabled)
  label              but to verified                    but to none (verifyAfterReboot)          but to verified, or as on the left
  annotationRemoval  yes                                                                         yes
  anotherBoot                                                                                    yes
  foreignConditions  yes (with a marker)                yes                                      yes
  conditionMisuse    yes (with a marker)                yes                                      yes
*/}}

{{/* The ACCOUNT of the controller, as YAML. */}}
{{- define "kube-node-ready.controllerAccount" -}}
{{- $name := printf "%s/%s" (include "kube-node-ready.namespace" .) (include "kube-node-ready.controllerName" .) -}}
{{- dict "name" $name "who" "the-controller" "labels" (include "kube-node-ready.controllerLabels" .) "config" .Values.config | toYaml }}
{{- end }}

{{/* How each policy begins: (list ACCOUNT NAME). */}}
{{- define "kube-node-ready.policy" -}}
{{- $account := first . -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {{ last . | quote }}
  labels:
    {{- $account.labels | nindent 4 }}
spec:
  failurePolicy: Fail
  matchConditions:
    # Requests of all other accounts, another release's included, are not evaluated.
    - name: {{ $account.who }}
      expression: request.userInfo.username == 'system:serviceaccount:{{ $account.name | replace "/" ":" }}'
{{- end }}

{{/*
The objects that a policy matches; a file adds the rules, each with a scope. These are defaults of the API server: a GitOps tool would
report their absence as a difference.
*/}}
{{- define "kube-node-ready.matchConstraints" -}}
matchConstraints:
  matchPolicy: Equivalent
  namespaceSelector: {}
  objectSelector: {}
  resourceRules:
{{- end }}

{{/* The binding of a policy: (list ACCOUNT NAME). */}}
{{- define "kube-node-ready.policyBinding" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ last . | quote }}
  labels:
    {{- (first .).labels | nindent 4 }}
spec:
  policyName: {{ last . | quote }}
  validationActions: [Deny]
{{- end }}

{{/* CEL: the node that the request's token was issued for (KEP-4193), '' if for none. */}}
{{- define "kube-node-ready.tokenNode" -}}
has(request.userInfo.extra) && 'authentication.kubernetes.io/node-name' in request.userInfo.extra
? request.userInfo.extra['authentication.kubernetes.io/node-name'][0] : ''
{{- end }}

{{/* CEL: the node has no role of the control plane or etcd, as label or taint. fleet.IsControlPlane has the same roles. */}}
{{- define "kube-node-ready.notControlPlane" -}}
['node-role.kubernetes.io/control-plane', 'node-role.kubernetes.io/etcd', 'node-role.kubernetes.io/master'].all(role,
!(role in variables.oldLabels) && !variables.oldTaints.exists(s, s.key == role))
{{- end }}

{{/* The variables of a policy for changes of Nodes. */}}
{{- define "kube-node-ready.nodeVariables" -}}
# The maps of the Node, before the request and after it, and the keys that it adds, changes or removes.
{{- range $map, $field := dict "Annotations" "metadata.?annotations" "Labels" "metadata.?labels" "Spec" "?spec" "Status" "?status" }}
{{- $new := lower $map | printf "variables.%s" }}
{{- $old := printf "variables.old%s" $map }}
- name: {{ lower $map }}
  expression: dyn(object).{{ $field }}.orValue({})
- name: old{{ $map }}
  expression: dyn(oldObject).{{ $field }}.orValue({})
- name: changed{{ $map }}
  expression: >-
    {{ $new }} == {{ $old }} ? [] :
    {{ $new }}.filter(k, {{ $new }}[?k] != {{ $old }}[?k]) + {{ $old }}.filter(k, !(k in {{ $new }}))
{{- end }}
- name: taints
  expression: variables.spec.?taints.orValue([])
- name: oldTaints
  expression: variables.oldSpec.?taints.orValue([])
{{- end }}

{{/* The variables of a policy whose account may set our condition: ACCOUNT. */}}
{{- define "kube-node-ready.conditionVariables" -}}
- name: conditions
  expression: variables.status.?conditions.orValue([])
- name: oldConditions
  expression: variables.oldStatus.?conditions.orValue([])
- name: condition
  expression: variables.conditions.filter(c, c.type == '{{ .config.conditionType }}')
{{- end }}

{{- define "kube-node-ready.forbid.otherNodes" -}}
- expression: variables.node == request.name
  reason: Forbidden
  messageExpression: >-
    '{{ .name }} may change only the node that its token was issued for: the token names "' + variables.node +
    '", the request "' + request.name + '"'
{{- end }}

{{/* Changes of a map of the Node, but of some keys: (list ACCOUNT "annotations", "labels", "spec" or "status" KEYS). */}}
{{- define "kube-node-ready.forbid.changesBut" -}}
{{- $map := index . 1 -}}
{{- $keys := index . 2 -}}
{{- $key := has $map (list "spec" "status") | ternary (printf "field of a node's %s" $map) (trimSuffix "s" $map | printf "%s of a node") -}}
{{- $but := empty $keys | ternary "" (join ", " $keys | printf " but %s") -}}
- expression: variables.changed{{ title $map }}.all(k, k in {{ toJson $keys }})
  reason: Forbidden
  message: {{ printf "%s may change no %s%s; exempt it from webhooks and policies that do" (first .).name $key $but | quote }}
{{- end }}

{{- define "kube-node-ready.forbid.owners" -}}
# The garbage collector would delete a node whose owner does not exist.
- expression: >-
    ['ownerReferences', 'finalizers', 'generateName'].all(k, dyn(object).metadata[?k] == dyn(oldObject).metadata[?k])
  reason: Forbidden
  message: {{ printf "%s may not change a node's ownerReferences, finalizers and generateName; exempt it from webhooks and policies that do"
    .name | quote }}
{{- end }}

{{/* Changes of taints with other keys: (list ACCOUNT KEYS). */}}
{{- define "kube-node-ready.forbid.foreignTaints" -}}
{{- $keys := last . -}}
- expression: >-
    variables.taints.filter(t, !(t.key in {{ toJson $keys }})) ==
    variables.oldTaints.filter(t, !(t.key in {{ toJson $keys }}))
  reason: Forbidden
  message: {{ printf "%s may add, change, remove or move no taint but %s" (first .).name (join ", " $keys) | quote }}
{{- end }}

{{- define "kube-node-ready.forbid.newTaints" -}}
- expression: >-
    variables.taints.all(t, t in variables.oldTaints)
  reason: Forbidden
  message: {{ printf "%s may add or change no taint" .name | quote }}
{{- end }}

{{/* The agent shows so that its node is not verified in time. */}}
{{- define "kube-node-ready.forbid.newTaintsButBesideStartupTaint" -}}
{{- $failed := .config.failedTaintKey -}}
- expression: >-
    variables.taints.all(t, t in variables.oldTaints ||
    (t.key == '{{ $failed }}' && t.effect == 'NoSchedule' && variables.taints.exists(s, s.key == '{{ .config.taintKey }}')))
  reason: Forbidden
  message: {{ printf "%s may add or change no taint but %s:NoSchedule beside %s" .name $failed .config.taintKey | quote }}
{{- end }}

{{/* The value of the failed taint says which release has added it: (list ACCOUNT VALUE). Needs the variable mayRetaint. */}}
{{- define "kube-node-ready.forbid.newTaintsButRetaint" -}}
{{- $config := (first .).config -}}
{{- $where := printf "where %s is %q, without %s, and not on a control plane or etcd server"
  $config.verifiedLabel (toString $config.verifiedLabelValue) $config.taintKey -}}
- expression: >-
    variables.taints.all(t, t in variables.oldTaints ||
    (t.key == '{{ $config.failedTaintKey }}' && t.effect == 'NoSchedule' && t.?value.orValue('') == '{{ last . }}' && variables.mayRetaint))
  reason: Forbidden
  message: {{ printf "%s may add or change no taint but %s=%s:NoSchedule %s" (first .).name $config.failedTaintKey (last .) $where | quote }}
{{- end }}

{{- define "kube-node-ready.forbid.labelButVerified" -}}
{{- $label := .config.verifiedLabel -}}
- expression: >-
    !('{{ $label }}' in variables.changedLabels) || variables.labels[?'{{ $label }}'] == optional.of(dyn('{{ .config.verifiedLabelValue }}'))
  reason: Forbidden
  message: {{ printf "%s may set the label %s to %q only" .name $label (toString .config.verifiedLabelValue) | quote }}
{{- end }}

{{/* Needs the variable wasRestarted. */}}
{{- define "kube-node-ready.forbid.labelButAfterReboot" -}}
{{- $label := .config.verifiedLabel -}}
- expression: >-
    !('{{ $label }}' in variables.changedLabels) || (!('{{ $label }}' in variables.labels) && variables.wasRestarted)
  reason: Forbidden
  message: {{ printf "%s may remove the label %s only where the annotation names another boot, and set no label" .name $label | quote }}
{{- end }}

{{/* Both of the above are allowed. */}}
{{- define "kube-node-ready.forbid.labelButVerifiedOrAfterReboot" -}}
{{- $label := .config.verifiedLabel -}}
{{- $value := toString .config.verifiedLabelValue -}}
- expression: >-
    !('{{ $label }}' in variables.changedLabels) || variables.labels[?'{{ $label }}'] == optional.of(dyn('{{ $value }}'))
    {{- /* on the same line */}} || (!('{{ $label }}' in variables.labels) && variables.wasRestarted)
  reason: Forbidden
  message: {{ printf "%s may remove the label %s only where the annotation names another boot, and set the label %s to %q only"
    .name $label $label $value | quote }}
{{- end }}

{{- define "kube-node-ready.forbid.annotationRemoval" -}}
- expression: >-
    !('node-ready/verification' in variables.changedAnnotations) || ('node-ready/verification' in variables.annotations &&
    size(variables.annotations['node-ready/verification']) <= 16384)
  reason: Forbidden
  message: {{ printf "%s may set the annotation node-ready/verification to at most 16384 characters, and not remove it" .name | quote }}
{{- end }}

{{/* CEL: a record names the Node's boot, or none. record.WasRebooted reads it in the same way. Needs the variable bootID. */}}
{{- define "kube-node-ready.sameBoot" -}}
{{ . }}.indexOf('"bootID":"') == {{ . }}.indexOf('"bootID":"' + variables.bootID + '"')
{{- end }}

{{/* Needs the variable record. */}}
{{- define "kube-node-ready.forbid.anotherBoot" -}}
# Otherwise a stolen token could write another boot, and then remove the label (verifyAfterReboot).
- expression: >-
    !('node-ready/verification' in variables.changedAnnotations) ||
    {{ include "kube-node-ready.sameBoot" "variables.record" }}
  reason: Forbidden
  message: {{ printf "%s may set the annotation node-ready/verification with no bootID but the node's" .name | quote }}
{{- end }}

{{- define "kube-node-ready.forbid.foreignConditions" -}}
- expression: >-
    variables.conditions.filter(c, c.type != '{{ .config.conditionType }}') ==
    variables.oldConditions.filter(c, c.type != '{{ .config.conditionType }}')
  reason: Forbidden
  message: {{ printf "%s may change no condition but %s" .name .config.conditionType | quote }}
{{- end }}

{{- define "kube-node-ready.forbid.conditionMisuse" -}}
{{- $type := .config.conditionType -}}
# A condition that another account has written so before does not block the release.
- expression: >-
    variables.condition == variables.oldConditions.filter(c, c.type == '{{ $type }}') || (variables.condition.size() <= 1 &&
    variables.condition.all(c, c.status in ['True', 'False', 'Unknown'] && size(c.?reason.orValue('')) + size(c.?message.orValue('')) <= 2048))
  reason: Forbidden
  message: {{ printf "%s may set the condition %s once, to True, False or Unknown, with at most 2048 characters" .name $type | quote }}
{{- end }}

{{/* Deletion of what its owner protects: (list ACCOUNT KIND). */}}
{{- define "kube-node-ready.forbid.protectedDeletion" -}}
- expression: >-
    ['karpenter.sh/do-not-disrupt', 'node-ready/do-not-delete'].all(key,
    !(key in dyn(oldObject).metadata.?annotations.orValue({})) && !(key in dyn(oldObject).metadata.?labels.orValue({})))
  reason: Forbidden
  message: {{ printf "%s may delete no %s with karpenter.sh/do-not-disrupt or node-ready/do-not-delete" (first .).name (last .) | quote }}
{{- end }}
