package doctor

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/controller/internal/plugin/installation"
	"github.com/imunhatep/kube-node-ready/internal/config"
	"github.com/imunhatep/kube-node-ready/internal/requirement"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// karpenter: unless Karpenter knows that the startup taint goes away, it creates no node for a pod that does not tolerate the
// taint, or twice as many nodes.
func karpenter(c Cluster, r *Result) {
	key, effect := c.Release.Agent.TaintKey, "Karpenter provisions twice"
	if own := c.Release.Controller; own != nil && own.RemediationMode == config.RemediationDelete {
		effect += ", and initializes the NodeClaims of such nodes: remediation may not delete them"
	}
	for _, pool := range c.NodePools.Value {
		isOther := func(node corev1.Node) bool { return node.Labels[nodePoolLabel] != pool.Name }
		nodes := slices.DeleteFunc(slices.Clone(c.Nodes.Value), isOther)
		gated := slices.IndexFunc(nodes, func(node corev1.Node) bool { return c.hasJoinedTainted(&node) })
		declares := func(of installation.Release) bool {
			return fleet.HasKey(pool.Spec.Template.Spec.StartupTaints, of.Agent.TaintKey)
		}
		const drift = ": this drifts its nodes, and Karpenter replaces them within the NodePool's disruption budgets"
		remedy := "declare the key under spec.template.spec.startupTaints of the NodePool " + pool.Name + drift
		switch template := pool.Spec.Template.Spec; {
		case fleet.HasKey(template.Taints, key):
			r.find("move it to startupTaints"+drift, "the NodePool %s has %s under taints: a pod that does not tolerate it never gets "+
				"a node", pool.Name, key)
		case declares(c.Release):
		case gated >= 0:
			r.find(remedy, "the NodePool %s does not declare %s, and its node %s joined with it: %s", pool.Name, key,
				nodes[gated].Name, effect)
		case slices.ContainsFunc(c.Release.Others, declares):
		default:
			r.warn(remedy, "the NodePool %s (nodes: %d) does not declare %s: if its nodes join with that taint, %s", pool.Name,
				len(nodes), key, effect)
		}
	}
}

// nodePoolLabel is Karpenter's, on each of its nodes.
const nodePoolLabel = "karpenter.sh/nodepool"

// clusterAutoscaler: unless Cluster Autoscaler knows that the startup taint goes away, it adds no node for a pod that does not
// tolerate the taint.
func clusterAutoscaler(c Cluster, r *Result) {
	key := c.Release.Agent.TaintKey
	const prefix = "startup-taint.cluster-autoscaler.kubernetes.io/"
	if strings.HasPrefix(key, prefix) || strings.HasPrefix(key, "ignore-taint.cluster-autoscaler.kubernetes.io/") {
		r.Passed = key + " has the prefix of a startup taint"
		return
	}
	const remedy = "set config.taintKey to " + prefix + "NAME, and use this key on the node groups"
	const text = "Cluster Autoscaler does not know the startup taint %s (%s): it adds no node for pods that do not tolerate it"
	isFound := false
	for _, deployment := range c.Deployments.Value {
		command, isAutoscaler := autoscalerCommand(deployment)
		isFound = isFound || isAutoscaler
		if isAutoscaler && isScaledUp(deployment) && !knowsTaint(command, key) {
			r.find(remedy+", or give Cluster Autoscaler --startup-taint=KEY", text, key,
				"Deployment "+deployment.Namespace+"/"+deployment.Name)
		}
	}
	switch unread := errors.Join(c.Deployments.Err, c.AutoscalerStatus.Err); {
	case isFound:
	case unread != nil:
		r.Unchecked = unread
	case c.AutoscalerStatus.Value:
		r.find(remedy, text, key, "the cloud runs it, so doctor cannot see its arguments")
	}
}

// autoscalerCommand returns the command of Cluster Autoscaler, if the Deployment's image or command shows that it runs it.
func autoscalerCommand(deployment appsv1.Deployment) (command string, found bool) {
	isImage := regexp.MustCompile(`(^|/)cluster-autoscaler(-amd64|-arm64|-s390x)?([:@].*)?$`).MatchString
	isCommand := regexp.MustCompile(`^([^ ]*/)?cluster-autoscaler( |$)`).MatchString
	for _, container := range deployment.Spec.Template.Spec.Containers {
		command = strings.Join(append(slices.Clone(container.Command), container.Args...), " ")
		if isImage(container.Image) || isCommand(command) {
			return command, true
		}
	}
	return "", false
}

// knowsTaint reports whether the flags of Cluster Autoscaler declare the key, or a prefix of it, as that of a startup taint.
// https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/FAQ.md
func knowsTaint(command, key string) bool {
	unquoted := strings.NewReplacer(`"`, "", "'", "", "\\\n", " ").Replace(command) // it may be a shell script
	command = strings.Join(strings.Fields(unquoted), " ")
	declared := regexp.MustCompile(`(^| )--?(startup|ignore)-taint[ =]` + regexp.QuoteMeta(key) + `([=: ]|$)`)
	prefixes := regexp.MustCompile(`(?:^| )--?startup-taint-prefix[ =]([^ ]+)`).FindAllStringSubmatch(command, -1)
	return declared.MatchString(command) || slices.ContainsFunc(prefixes, func(flag []string) bool {
		return strings.HasPrefix(key, flag[1])
	})
}

// foreignTaints: no agent starts on a node with a NoExecute taint that it does not tolerate, so the startup taint stays.
func foreignTaints(c Cluster, r *Result) {
	const remedy = "add a toleration for it to the chart's tolerations"
	key := c.Release.Agent.TaintKey
	for _, node := range c.Nodes.Value {
		if taint := c.untolerated(node.Labels[nodePoolLabel], node.Spec.Taints); taint != nil && fleet.HasTaint(&node, key) &&
			c.Release.Settings.Rules.Select(&node) {
			r.find(remedy, "the node %s has the startup taint and %s, which the agent does not tolerate", node.Name, taint.ToString())
		}
	}
	for _, pool := range c.NodePools.Value {
		template := pool.Spec.Template.Spec
		report := r.find
		if !c.Release.IsOnly() { // whose nodes these are is not certain
			report = r.warn
		}
		if taint := c.untolerated(pool.Name, template.Taints); taint != nil && fleet.HasKey(template.StartupTaints, key) {
			report(remedy, "nodes of the NodePool %s join with the startup taint and %s, which the agent does not tolerate",
				pool.Name, taint.ToString())
		}
	}
}

// untolerated returns a taint of a node in a NodePool that keeps the agent away and stays, or nil. Kubernetes removes its own
// taints, and other clients remove foreign startup taints: see leftStartupTaints.
func (c Cluster) untolerated(pool string, taints []corev1.Taint) *corev1.Taint {
	goes := func(taint corev1.Taint) bool {
		prefix, _, _ := strings.Cut(taint.Key, "/")
		return prefix == "node.kubernetes.io" || prefix == "node.cloudprovider.kubernetes.io" ||
			c.Release.Settings.Keys.ForeignTaint([]nodepatch.Taint{{Key: taint.Key}}) != nil || c.isForeignStartupTaint(pool, taint.Key)
	}
	staying := &corev1.Node{Spec: corev1.NodeSpec{Taints: slices.DeleteFunc(slices.Clone(taints), goes)}}
	return c.Release.Settings.Rules.Untolerated(staying)
}

// waiting finds nodes with the taint of that key that wait for an agent although none runs or starts there. explain returns no
// text for a node that does not wait. Nodes of the other releases of the cluster are left to those.
func (c Cluster) waiting(r *Result, key string, explain func(node *corev1.Node) (remedy, text string)) {
	for _, node := range c.Nodes.Value {
		remedy, text := explain(&node)
		isAgent := func(pod corev1.Pod) bool {
			return fleet.NodeOf(&pod) == node.Name && pod.DeletionTimestamp == nil && !fleet.HasEnded(&pod)
		}
		if !fleet.HasTaint(&node, key) || text == "" || slices.ContainsFunc(c.Agents.Value, isAgent) {
			continue
		}
		switch other, unseen := c.Release.RemovedElsewhere(&node, key); {
		case unseen == nil && other == nil:
			r.find(remedy, "the node %s %s", node.Name, text)
		case r.Unchecked == nil && unseen != nil:
			r.skip("the node %s, for example, may be of another release: %w", node.Name, unseen)
		}
	}
}

// command returns a command of the plugin, or of kubectl where the plugin finds no release.
func (c Cluster) command(plugin, kubectl string) string {
	if c.Release.NotInstalled {
		return "kubectl " + kubectl
	}
	return c.Release.Command(plugin)
}

// labelledAndTainted: the label keeps the agent away that would remove the taint.
func labelledAndTainted(c Cluster, r *Result) {
	label := c.Release.Agent.VerifiedLabel
	c.waiting(r, c.Release.Agent.TaintKey, func(node *corev1.Node) (remedy, text string) {
		value, labelled := node.Labels[label]
		if c.Release.Settings.Workers || !labelled {
			return "", ""
		}
		return c.command("verify "+node.Name, "label node "+node.Name+" "+label+"-") +
				"; metadata.managedFields names who writes label and taint",
			"has the label " + label + "=" + value + " and the startup taint: no agent comes to remove the taint"
	})
}

// excludedAndTainted: the node rules keep the agent away that would remove the taint.
func excludedAndTainted(c Cluster, r *Result) {
	key := c.Release.Agent.TaintKey
	c.waiting(r, key, func(node *corev1.Node) (remedy, text string) {
		if !c.Release.Settings.IsStranded(node) {
			return "", ""
		}
		return c.command("open "+node.Name, "taint nodes "+node.Name+" "+key+"-") +
				", and let such nodes join without the startup taint, or change the node rules",
			"has the startup taint, but the node rules exclude the node: no agent comes to remove the taint"
	})
}

// failedTaint: the agent removes the failed taint. On a node without an agent the controller does, if it has added the taint.
func failedTaint(c Cluster, r *Result) {
	key, settings := c.Release.Agent.FailedTaintKey, c.Release.Settings
	c.waiting(r, key, func(node *corev1.Node) (remedy, text string) {
		if settings.IsRetainted(fleet.Taints(node)) || (settings.Workers && settings.IsGated(node)) {
			return "", ""
		}
		verb := "open " // no agent would come
		if settings.Rules.Select(node) {
			verb = "verify "
		}
		return c.command(verb+node.Name, "taint nodes "+node.Name+" "+key+"-"),
			"has the taint " + key + " and no agent: nothing removes the taint"
	})
}

// requirements: what meets one must itself run on a node that is not released yet.
func requirements(c Cluster, r *Result) {
	for _, e := range c.Release.Agent.Require {
		for key := range e.On {
			if domain, _, _ := strings.Cut(key, "/"); domain == "nvidia.com" || strings.HasSuffix(domain, "feature.node.kubernetes.io") {
				r.warn("use a label that these nodes have when they register, such as node.kubernetes.io/instance-type",
					"%s: feature discovery adds the label %s later: a node may be released before it has the label", e, key)
			}
		}
		switch why, lacking := c.unmet(e); {
		case why != "":
			r.find("start what provides it, and let it tolerate "+strings.Join(c.Release.TaintKeys(), " and ")+" (operator Exists); "+
				"or correct config.require", "%s: %s: nodes that need it are not released", e, why)
		case len(lacking) > 0:
			r.warn("find out what these nodes lack", "%s: other nodes meet it, but not %s", e, strings.Join(lacking, ", "))
		}
	}
}

// unmet returns why no node that a requirement is for meets it, or why no new node will, or "". If some meet it, it returns those
// that do not, although they are Ready and older than INITIAL_TIMEOUT.
func (c Cluster) unmet(e requirement.Entry) (example string, lacking []string) {
	if e.Kind == requirement.DaemonSet {
		return c.unmetDaemonSet(e.Name), nil
	}
	isMet := false
	for _, node := range c.Nodes.Value {
		seen := fleet.PatchNode(&node)
		if !e.IsFor(seen) || !c.Release.Settings.Rules.Select(&node) {
			continue
		}
		why := e.Unmet(seen, nil)
		if why == "" {
			isMet = true
			continue
		}
		example = node.Name + ", for example: " + why
		isDue := c.Now.Sub(node.CreationTimestamp.Time) > c.Release.Agent.InitialTimeout
		if isDue && fleet.IsNodeReady(&node) && c.isForRelease(&node) {
			lacking = append(lacking, node.Name)
		}
	}
	if isMet {
		return "", lacking
	}
	return example, nil
}

// unmetDaemonSet returns why a DaemonSet, NAMESPACE/NAME, does not run on new nodes, or "".
func (c Cluster) unmetDaemonSet(name string) string {
	for _, set := range c.DaemonSets.Value {
		switch pod := (corev1.Pod{Spec: set.Spec.Template.Spec}); {
		case set.Namespace+"/"+set.Name != name:
		case repels(&pod, gatesOf(c.Release)...):
			return "its pods do not tolerate the taints of a node that waits for them"
		case set.Status.DesiredNumberScheduled > 0 && set.Status.NumberReady == 0:
			return "none of its pods is ready"
		default:
			return ""
		}
	}
	return "there is no such DaemonSet"
}

// readinessRules: the node-readiness-controller taints nodes that lack the condition. A labelled node has no agent to write it.
func readinessRules(c Cluster, r *Result) {
	kind, label := c.Release.Agent.ConditionType, c.Release.Agent.VerifiedLabel
	isOurs := func(condition corev1.NodeCondition) bool { return string(condition.Type) == kind }
	for _, rule := range c.ReadinessRules.Value {
		if !slices.ContainsFunc(rule.Spec.Conditions, isOurs) {
			continue
		}
		if rule.Spec.EnforcementMode != "bootstrap-only" {
			r.warn("make another rule with enforcementMode bootstrap-only, and delete this one",
				"the NodeReadinessRule %s taints every node whose %s turns False, however many they are", rule.Name, kind)
		}
		for _, node := range c.Nodes.Value {
			_, labelled := node.Labels[label]
			if labelled && selects(&rule.Spec.NodeSelector, node.Labels) && c.Release.Settings.Condition(&node).Type == "" {
				r.warn("set config.condition=always, and "+c.command("verify NODE", "label node NODE "+label+"-")+"; or make another rule",
					"the NodeReadinessRule %s selects the node %s, where no agent comes to write %s", rule.Name, node.Name, kind)
			}
		}
	}
}

// leftStartupTaints: a foreign startup taint that its owner has not removed keeps workloads away as ours would.
func leftStartupTaints(c Cluster, r *Result) {
	for _, text := range c.LeftStartupTaints() {
		r.warn("find out who should remove that taint", "%s", text)
	}
}

// LeftStartupTaints names the foreign startup taints on nodes older than INITIAL_TIMEOUT and 10 minutes, verified or not.
func (c Cluster) LeftStartupTaints() (found []string) {
	due := max(c.Release.Agent.InitialTimeout, 10*time.Minute)
	for _, node := range c.Nodes.Value {
		age := c.Now.Sub(node.CreationTimestamp.Time)
		for _, taint := range node.Spec.Taints {
			if age > due && c.isForeignStartupTaint(node.Labels[nodePoolLabel], taint.Key) {
				found = append(found, fmt.Sprintf("the node %s is %s old and still has the foreign startup taint %s", node.Name,
					duration.HumanDuration(age), taint.ToString()))
			}
		}
	}
	return found
}

// isForeignStartupTaint reports whether another client removes the taint with this key from the new nodes of a NodePool. The
// taints of a node that is drained or disrupted are not removed, whatever prefix they have.
func (c Cluster) isForeignStartupTaint(pool, key string) bool {
	prefixes := append([]string{"startup-taint.cluster-autoscaler.kubernetes.io/", "ignore-taint.cluster-autoscaler.kubernetes.io/",
		"readiness.k8s.io/", "node.cloudprovider.kubernetes.io/uninitialized", "node.cluster.x-k8s.io/uninitialized",
		"cni.istio.io/not-ready", "agent.datadoghq.com/not-ready", "pd.csi.storage.gke.io/startup", "nidhogg.uswitch.com/",
		"nodetaint/", "nodetaint.wish.com/", "karpenter.sh/unregistered"}, c.Release.Agent.WaitForTaints...)
	draining := []string{"karpenter.sh/disrupted", "karpenter.sh/disruption", "ToBeDeletedByClusterAutoscaler",
		"DeletionCandidateOfClusterAutoscaler", corev1.TaintNodeUnschedulable, corev1.TaintNodeOutOfService}
	begins := func(prefix string) bool { return strings.HasPrefix(key, prefix) }
	declares := func(p NodePool) bool { return p.Name == pool && fleet.HasKey(p.Spec.Template.Spec.StartupTaints, key) }
	removes := func(of installation.Release) bool { return of.Settings.Keys.Removes(nodepatch.Taint{Key: key}) }
	return !slices.ContainsFunc(c.Release.WithOthers(), removes) && !slices.Contains(draining, key) &&
		(strings.HasSuffix(key, "/agent-not-ready") || slices.ContainsFunc(prefixes, begins) ||
			slices.ContainsFunc(c.NodePools.Value, declares))
}
