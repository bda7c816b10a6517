package release

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// names are what an installation can call its objects, and what it puts on nodes.
type names struct {
	release, home        string // home is the namespace of the release, namespace is where its objects are
	namespace, fullname  string
	taint, value, failed string
	label, labelValue    string
	condition            string
	values               []string
}

func defaults() names {
	return names{release: harness.Name, home: harness.Namespace, namespace: harness.Namespace, fullname: harness.Name, taint: harness.Taint, value: "true",
		failed: "node-ready/failed", label: harness.Label, labelValue: "true", condition: harness.ConditionType}
}

// Every block of README, operations and break-glass, in the order in which a user needs them, on three clusters: with the chart's
// defaults, with GKE's key, and with everything renamed. Only addresses, and the values that a block tells its reader to replace, differ.
func TestBlocks(t *testing.T) {
	gke := defaults()
	gke.taint = "startup-taint.cluster-autoscaler.kubernetes.io/unverified"
	gke.values = []string{"config.taintKey=" + gke.taint}

	renamed := names{release: "gate", home: "gating-releases", namespace: "gating", fullname: "my-gate", taint: "taints.example.com/pending", value: "yes",
		failed: "taints.example.com/broken", label: "labels.example.com/passed", labelValue: "yes", condition: "NetworkProven"}
	renamed.values = []string{"namespaceOverride=" + renamed.namespace, "fullnameOverride=" + renamed.fullname, "config.taintKey=" + renamed.taint, "config.taintValue=" + renamed.value,
		"config.failedTaintKey=" + renamed.failed, "config.verifiedLabel=" + renamed.label, "config.verifiedLabelValue=" + renamed.labelValue,
		"config.conditionType=" + renamed.condition, "startupTaint.add=true", "controller.enabled=true"}

	for name, n := range map[string]names{"defaults": defaults(), "gke": gke, "renamed": renamed} {
		if harness.Core() && name != "defaults" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			b := &blocks{suite: start(t), names: n, ran: make(map[string]bool)}
			b.cleanUp()
			b.leaveOut()
			b.install()
			b.gateOne()
			b.formerCondition()
			b.tolerate()
			b.breakGlass()
			b.uninstall()
			b.withoutRelease()
			b.allRan()
		})
	}
}

// blocks is one run.
type blocks struct {
	*suite
	names
	ran map[string]bool
}

// text is a block with this run's names in place of what its reader replaces.
func (b *blocks) text(document, marker string, replace ...string) string {
	b.T.Helper()
	b.ran[marker] = true
	block := b.Block(document, marker, "sh")
	for i := 0; i < len(replace); i += 2 {
		b.Contains(block, replace[i], "what the reader replaces")
	}
	return strings.NewReplacer(replace...).Replace(block)
}

func (b *blocks) run(document, marker string, replace ...string) string {
	b.T.Helper()
	return b.block(b.text(document, marker, replace...))
}

// cleanUp takes away what this run leaves, when it ends.
func (b *blocks) cleanUp() {
	b.Undo(func(ctx context.Context) error {
		if b.namespace != b.home {
			if _, err := b.Cluster.Kubectl(ctx, "", "delete", "namespace", b.namespace, b.home, "--ignore-not-found"); err != nil {
				return err
			}
		}
		_, err := b.Cluster.Kubectl(ctx, "", "label", "node", node, b.label+"-")
		return err
	})
	b.Undo(func(ctx context.Context) error {
		_, err := b.Cluster.Run(ctx, "", b.Cluster.Tool("helm"), "uninstall", b.release, "--namespace", b.home, "--ignore-not-found", "--wait")
		return err
	})
}

// fakeNode is a node without a kubelet, until the run ends. With the label no agent is meant to come.
func (b *blocks) fakeNode(name, label string, keys ...string) {
	b.T.Helper()
	n := fmt.Sprintf("{apiVersion: v1, kind: Node, metadata: {name: %s, labels: {kubernetes.io/os: linux%s}}, spec: {taints: [", name, label)
	for _, key := range keys {
		n += fmt.Sprintf("{key: %s, value: x, effect: NoSchedule},", key)
	}
	b.Apply(n + "]}}")
}

// taints lists the keys of a node's taints, but for the node controller's.
func (b *blocks) taints(name string) (keys []string) {
	b.T.Helper()
	for _, taint := range b.Node(name).Spec.Taints {
		if !strings.HasPrefix(taint.Key, "node.kubernetes.io/") {
			keys = append(keys, taint.Key)
		}
	}
	return keys
}

func (b *blocks) leaveOut() {
	b.T.Helper()
	b.fakeNode("blocks-plain", "")
	b.fakeNode("blocks-gated", "", "example.com/first", b.taint)
	b.run("README.md", "leave-out", "label="+harness.Label+" ", "label="+b.label+" ", "taint="+harness.Taint, "taint="+b.taint)
	b.Equal("preexisting", b.Node("blocks-plain").Labels[b.label])
	b.NotContains(b.Node("blocks-gated").Labels, b.label, "nobody would remove its startup taint")
	b.Kubectl("", "delete", "node", "blocks-plain", "blocks-gated") // no kubelet would end their agents
}

// install is README's steps 1 and 2: the plugin looks at the cluster, Helm installs the chart from the OCI registry without gating.
func (b *blocks) install() {
	b.T.Helper()
	out := b.run("README.md", "install-plugin", b.address(), b.files)
	b.Contains(out, "kubectl-node_ready-linux-"+runtime.GOARCH+".tar.gz: OK")
	b.Contains(b.Bash(b.bin()+"/kubectl-node_ready --version"), "kubectl node-ready "+b.version+" ")
	b.Contains(b.Bash(b.bin()+"/kubectl-node_ready doctor 2>&1 || true"), "before the installation, run helm template ... | kubectl node-ready doctor -f -")

	b.push()
	set := ""
	for _, value := range b.values {
		set += " --set " + value
	}
	look := b.text("README.md", "look", "template kube-node-ready ", "template "+b.release+" ", "--namespace kube-system", "--namespace "+b.home+set)
	out = b.block(strings.TrimSpace(look) + " || true\n") // with another key, this cluster's DNS pods may be a trap
	b.Contains(out, "doctor assumes the release "+b.release+" of the manifests in the namespace "+b.namespace)
	if b.taint == harness.Taint {
		b.NotContains(out, "TRAP")
	}
	if b.namespace != b.home {
		b.Kubectl("", "create", "namespace", b.namespace)
	}
	b.Break("meta l4proto { tcp, udp } th dport 53 drop")
	b.Kubectl("", "label", "node", node, b.label+"-")
	b.run("README.md", "install-helm", "install kube-node-ready ", "install "+b.release+" ",
		"--namespace kube-system", "--namespace "+b.home+" --create-namespace"+set)
	b.verified(harness.Release{Name: b.release, Namespace: b.namespace}, b.isVerified)
	b.NotContains(b.Node(node).Annotations[harness.Annotation], b.taint, "nothing is held back")
	b.Contains(b.Bash(b.bin()+"/kubectl-node_ready"), "1 node: 1 verified")
	b.NotContains(b.Bash(b.bin()+"/kubectl-node_ready doctor --ask-dns || true"), "SKIP") // with other keys, this cluster's DNS pods are a trap
}

func (b *blocks) isVerified(n *corev1.Node) bool {
	return n.Labels[b.label] == b.labelValue && !harness.HasTaint(n, b.taint)
}

func (b *blocks) gateOne() {
	b.T.Helper()
	out := b.run("README.md", "gate-one", "node=NAME", "node="+node)
	b.Empty(b.taints(node), "a taint that nobody removes")
	b.Contains(out, "release: "+b.namespace+"/"+b.fullname+", startup taint: "+b.taint+"="+b.value+":NoSchedule")
	b.True(b.isVerified(b.Node(node)))
	b.Contains(b.Node(node).Annotations[harness.Annotation], b.taint, "the startup taint was removed")
}

// formerCondition removes a condition that the release wrote before config.conditionType changed, and no other.
func (b *blocks) formerCondition() {
	b.T.Helper()
	b.Kubectl("", "patch", "node", node, "--subresource=status", "-p", `{"status":{"conditions":[{"status":"False","type":"Former"}]}}`)
	before := b.Node(node).Status.Conditions
	b.run("docs/operations.md", "former-condition", "former=FORMER", "former=Former")
	b.Nil(harness.Condition(b.Node(node), "Former"))
	b.Len(b.Node(node).Status.Conditions, len(before)-1)
}

// tolerate patches a Deployment in place of the platform's: one without tolerations (TestCoreDNSPatch has others).
func (b *blocks) tolerate() {
	b.T.Helper()
	b.Apply(harness.CoreDNS)
	b.run("docs/operations.md", "coredns-tolerations", "-n kube-system ", "-n default ", harness.Taint, b.taint, "node-ready/failed", b.failed)
	patched, err := b.Cluster.Kube.AppsV1().Deployments("default").Get(b.Ctx, "coredns", metav1.GetOptions{})
	b.NoError(err)
	b.Equal([]corev1.Toleration{{Key: b.taint, Operator: corev1.TolerationOpExists}, {Key: b.failed, Operator: corev1.TolerationOpExists}},
		patched.Spec.Template.Spec.Tolerations)
}

func (b *blocks) breakGlass() {
	b.T.Helper()
	const page = "docs/break-glass.md"
	b.run(page, "stop-controller")
	b.run(page, "stop-startup-taint")
	b.Equal("", b.Kubectl("", "get", "mutatingadmissionpolicybindings", "--output=name"))
	deployments, err := b.Cluster.Kube.AppsV1().Deployments(b.namespace).List(b.Ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/instance=" + b.release})
	b.NoError(err)
	for _, deployment := range deployments.Items {
		b.Zero(*deployment.Spec.Replicas)
	}

	label := fmt.Sprintf(", %s: %q", b.label, b.labelValue)
	for marker, replace := range map[string][]string{"break-glass": nil, "open-all": nil, "open-one": {"NODE", "glass-open-one"}} {
		glass := "glass-" + marker
		b.fakeNode(glass, label, "example.org/first", b.failed, b.taint)
		out := b.run(page, marker, replace...)
		b.Equal([]string{"example.org/first"}, b.taints(glass), marker)
		if marker == "break-glass" {
			b.Contains(out, b.namespace+"/"+b.fullname+" "+b.taint+" "+b.failed)
		}
	}
}

// otherRelease is a release that shares its keys with the one under test.
const otherRelease = "other"

// installOther installs a second release with the same keys for the nodes of one pool. The release under test selects them, too.
func (b *blocks) installOther() {
	b.T.Helper()
	keep := slices.DeleteFunc(slices.Clone(b.values), func(value string) bool { return !strings.HasPrefix(value, "config.") })
	b.Undo(func(ctx context.Context) error {
		_, err := b.Cluster.Run(ctx, "", b.Cluster.Tool("helm"), "uninstall", otherRelease, "--namespace", harness.Namespace,
			"--ignore-not-found")
		return err
	})
	_, err := b.Cluster.Run(b.Ctx, "", b.Cluster.Tool("helm"), append([]string{"install", otherRelease, "chart",
		"--namespace", harness.Namespace}, harness.Set(append(keep, `nodeSelector.example\.com/pool=`+otherRelease)...)...)...)
	b.NoError(err)
}

// waitingNode is a node without a kubelet, with our condition and the release's taints, on which each of some releases has a pod.
func (b *blocks) waitingNode(name, label string, releases ...string) {
	b.T.Helper()
	b.fakeNode(name, label, "example.org/first", b.failed, b.taint)
	b.setCondition(name)
	slices.Sort(releases)
	b.Until(func() (bool, error) { return slices.Equal(releases, agents(b.Suite, name)), nil },
		"no agents of %v for %s", releases, name)
}

func (b *blocks) setCondition(node string) {
	b.T.Helper()
	b.Kubectl("", "patch", "node", node, "--subresource=status", "-p",
		`{"status":{"conditions":[{"status":"False","type":"`+b.condition+`"}]}}`)
}

func (b *blocks) hasCondition(node string) bool {
	b.T.Helper()
	return harness.Condition(b.Node(node), corev1.NodeConditionType(b.condition)) != nil
}

// uninstallBlocks are both blocks of the section, as the reader changes their first lines.
func (b *blocks) uninstallBlocks(release string, replace ...string) string {
	b.T.Helper()
	const page = "docs/operations.md"
	return b.text(page, "uninstall", append(replace, "release=kube-node-ready", "release="+release)...) +
		b.text(page, "uninstall-condition")
}

// uninstall leaves the nodes as they are, without the taints and the condition of the release. Nodes that another release with the
// same keys may be verifying keep theirs until that release is uninstalled, too.
func (b *blocks) uninstall() {
	b.T.Helper()
	b.installOther()
	b.waitingNode("blocks-waiting", "", b.release)
	b.waitingNode("blocks-both", ", example.com/pool: "+otherRelease, b.release, otherRelease)
	b.waitingNode("blocks-unowned", fmt.Sprintf(", %s: %q", b.label, b.labelValue))
	b.setCondition(node)
	all := []string{"example.org/first", b.failed, b.taint}
	b.failing(all)

	out := b.block(b.uninstallBlocks(b.release))
	b.Equal("", b.Kubectl("", "get", "daemonsets,deployments,configmaps,leases", "--all-namespaces", "--output=name",
		"--selector=app.kubernetes.io/part-of="+harness.Name+",app.kubernetes.io/instance="+b.release))
	b.NotContains(b.Kubectl("", "get", "configmaps,leases", "--namespace="+b.namespace, "--output=name"), "/"+b.fullname)
	b.True(b.isVerified(b.Node(node)), "the node serves as before")
	b.Equal([]string{"example.org/first"}, b.taints("blocks-waiting"))
	b.False(b.hasCondition("blocks-waiting"))
	for _, name := range []string{"blocks-both", "blocks-unowned"} {
		b.Equal(all, b.taints(name))
		b.True(b.hasCondition(name))
		b.Contains(out, name+" "+b.taint)
	}
	b.NotContains(out, "blocks-waiting "+b.taint)
	b.gone(all)

	b.block(b.uninstallBlocks(otherRelease))
	for _, name := range []string{"blocks-both", "blocks-unowned"} {
		b.Equal([]string{"example.org/first"}, b.taints(name), "no other release uses the keys")
		b.False(b.hasCondition(name))
	}
	b.False(b.hasCondition(node))
	b.Until(func() (bool, error) { // kubelet stops them
		return !strings.Contains(b.Kubectl("", "get", "pods", "--namespace="+b.namespace, "--output=name"), "/"+b.fullname), nil
	}, "pods of the release are left")
}

// failing runs the block where something that it needs fails, or with wrong settings. It stops before it changes anything.
func (b *blocks) failing(taints []string) {
	b.T.Helper()
	block := b.uninstallBlocks(b.release)
	for what, commands := range map[string]string{
		"the releases cannot be read": `kubectl() { case $* in *"get configmaps"*) return 1 ;; esac; command kubectl "$@"; }` + "\n" + block,
		"the pods cannot be read":     `kubectl() { case $* in *"get pods"*) return 1 ;; esac; command kubectl "$@"; }` + "\n" + block,
		"helm fails":                  "helm() { return 1; }\n" + block,
		"keys of another release":     b.uninstallBlocks(b.release, "keys=''", "keys=example.com/former"),
	} {
		_, err := b.shell(commands)
		b.Error(err, what)
		b.NotEmpty(b.Kubectl("", "get", "configmaps", "--namespace="+b.namespace, "--output=name",
			"--selector=app.kubernetes.io/instance="+b.release), what)
		for _, name := range []string{"blocks-waiting", "blocks-both", "blocks-unowned"} {
			b.Equal(taints, b.taints(name), "%s: %s", name, what)
			b.True(b.hasCondition(name), "%s: %s", name, what)
		}
	}
}

// gone runs the block for a release that is already uninstalled, while another one uses its keys. The operator supplies the keys and
// names the nodes.
func (b *blocks) gone(taints []string) {
	b.T.Helper()
	_, err := b.shell(b.uninstallBlocks(b.release))
	b.Error(err, "neither a release nor keys")
	supplied := []string{"keys=''", "keys='" + b.taint + " " + b.failed + "'", "condition=''", "condition=" + b.condition}
	out, err := b.shell(b.uninstallBlocks(b.release, supplied...))
	b.NoError(err)
	b.Contains(out, "blocks-unowned "+b.taint)
	b.Equal(taints, b.taints("blocks-unowned"), "the node is not named")

	b.waitingNode("blocks-named", fmt.Sprintf(", %s: %q", b.label, b.labelValue))
	_, err = b.shell(b.uninstallBlocks(b.release, append(supplied, "nodes=''", "nodes='blocks-named'")...))
	b.NoError(err)
	b.Equal([]string{"example.org/first"}, b.taints("blocks-named"))
	b.False(b.hasCondition("blocks-named"))
	for _, name := range []string{"blocks-both", "blocks-unowned"} {
		b.Equal(taints, b.taints(name))
		b.True(b.hasCondition(name))
	}
}

// shell runs commands as a person does who pastes them: in a plain shell, which goes on after an error.
func (b *blocks) shell(commands string) (string, error) {
	b.T.Helper()
	path := filepath.Dir(b.Cluster.Tool("kubectl")) + ":" + os.Getenv("PATH")
	out, err := b.Cluster.Run(b.Ctx, commands, "env", "PATH="+path, "sh")
	b.T.Log(out, err)
	return out, err
}

// withoutRelease runs the blocks that read a release in a cluster without a release: they stop, and change no node.
func (b *blocks) withoutRelease() {
	b.T.Helper()
	b.fakeNode("blocks-left", "", b.failed, b.taint)
	b.Contains(b.run("docs/break-glass.md", "break-glass"), "none found")
	_, err := b.shell(b.uninstallBlocks(b.release))
	b.Error(err)
	b.Bash("! (" + b.text("README.md", "gate-one", "node=NAME", "node=blocks-left") + ")")
	b.Equal([]string{b.failed, b.taint}, b.taints("blocks-left"))
}

// allRan asserts that no block was left out, but for the makefile's, the one that TestInstallFromTheFiles runs, and the
// one that the document calls untested.
func (b *blocks) allRan() {
	b.T.Helper()
	b.ran["install-kubectl"], b.ran["kind"] = true, true
	for _, document := range []string{"README.md", "docs/operations.md", "docs/break-glass.md"} {
		content, err := os.ReadFile(filepath.Join(b.Cluster.Root, document))
		b.NoError(err)
		for _, block := range regexp.MustCompile("(?m)(?:^<!-- (\\S+) -->\n)?^```sh\n(.*)").FindAllStringSubmatch(string(content), -1) {
			b.True(b.ran[block[1]] || strings.HasPrefix(block[2], "make "), "%s: nobody has run the block %q: %s", document, block[1], block[2])
		}
	}
}
