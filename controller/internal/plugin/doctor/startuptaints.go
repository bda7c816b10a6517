package doctor

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/controller/internal/plugin/installation"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// leftStartupTaints: somebody has not removed a startup taint. It keeps workloads away as ours would.
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

// isForeignStartupTaint reports whether another client than the agent is to remove a taint from the new nodes of a NodePool. The
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
