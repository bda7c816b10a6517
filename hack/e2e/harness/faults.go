package harness

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// table is the nftables table in a node's namespace that holds our faults and nothing else.
const table = "knr-fault"

// Break adds nftables rules to what a node forwards for its pods, before any address is rewritten:
// a ClusterIP is still itself there. Each rule is what stands behind "add rule".
func (c *Cluster) Break(ctx context.Context, node string, rules ...string) error {
	return c.Filter(ctx, node, "prerouting priority raw", rules...)
}

// BreakForwarded is Break once the addresses of services have been rewritten to those of their
// endpoints. Only what goes to pods or comes from them passes here, nothing of kubelet's.
func (c *Cluster) BreakForwarded(ctx context.Context, node string, rules ...string) error {
	return c.Filter(ctx, node, "forward priority filter", rules...)
}

// Filter is Break at any hook of nftables.
func (c *Cluster) Filter(ctx context.Context, node, hook string, rules ...string) error {
	// One transaction: there is no moment without rules when they are replaced.
	script := fmt.Sprintf("table inet %[1]s\ndelete table inet %[1]s\ntable inet %[1]s {\n chain pods {\n type filter hook %[2]s;\n %[3]s\n }\n}\n",
		table, hook, strings.Join(rules, "\n"))
	return c.nft(ctx, node, script)
}

// Repair takes the rules of Break away.
func (c *Cluster) Repair(ctx context.Context, node string) error {
	return c.nft(ctx, node, fmt.Sprintf("table inet %[1]s\ndelete table inet %[1]s\n", table))
}

func (c *Cluster) nft(ctx context.Context, node, script string) error {
	_, err := c.Run(ctx, script, c.Root+"/hack/cluster/cluster", "enter", node, "nft", "-f", "-")
	return err
}

// Counted returns the packets that each rule with a counter has seen, in the order of the rules.
func (c *Cluster) Counted(ctx context.Context, node string) ([]int, error) {
	text, err := c.Script(ctx, "enter", node, "nft", "list", "table", "inet", table)
	var packets []int
	for _, found := range regexp.MustCompile(`counter packets (\d+)`).FindAllStringSubmatch(text, -1) {
		n, _ := strconv.Atoi(found[1]) // digits
		packets = append(packets, n)
	}
	return packets, err
}

// Signal sends a signal to a component of the control plane, or of a node.
func (c *Cluster) Signal(ctx context.Context, signal string, component ...string) error {
	_, err := c.Script(ctx, append([]string{"signal", signal}, component...)...)
	return err
}

// ScaleCoreDNS sets the number of DNS pods and waits until as many of them serve.
func (c *Cluster) ScaleCoreDNS(ctx context.Context, replicas int32) error {
	patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas)
	deployments := c.Kube.AppsV1().Deployments(Namespace)
	if _, err := deployments.Patch(ctx, "coredns", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return err
	}
	return c.AwaitCoreDNS(ctx, replicas)
}

// AwaitCoreDNS waits until just that many DNS pods are there and serve.
func (c *Cluster) AwaitCoreDNS(ctx context.Context, replicas int32) error {
	return Until(ctx, func() (bool, error) {
		pods, err := c.Kube.CoreV1().Pods(Namespace).List(ctx, metav1.ListOptions{LabelSelector: "k8s-app=kube-dns"})
		if err != nil || len(pods.Items) != int(replicas) {
			return false, err
		}
		deployment, err := c.Kube.AppsV1().Deployments(Namespace).Get(ctx, "coredns", metav1.GetOptions{})
		return err == nil && deployment.Status.ReadyReplicas == replicas && deployment.Status.ObservedGeneration == deployment.Generation, err
	})
}
