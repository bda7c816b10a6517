// Package installation finds an installation of the chart in a cluster, and reads what was decided there.
package installation

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/internal/config"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// Labels of the chart's objects.
const (
	partOf   = "app.kubernetes.io/part-of"
	instance = "app.kubernetes.io/instance"
	product  = "kube-node-ready"
)

// Release is one installation of the chart, or what manifests would install.
type Release struct {
	Name, Namespace string
	// Fullname is the name of the agent's objects; the controller's is Fullname-controller.
	Fullname   string
	Agent      config.Config
	Controller *config.Controller // nil without a controller
	// Template is that of the agent's pods, or in controller mode of the workers.
	Template *corev1.PodTemplateSpec
	Settings fleet.Settings
	// Known is how much of the release could be read. Invalid is why the rest could not; it is nil if Known is Everything.
	Known   Known
	Invalid error
	// Planned are the manifests that the release was read from. It is nil if the release was read from the cluster.
	Planned Manifests
	// NotInstalled means that the release was read from manifests, and that the cluster does not have it.
	NotInstalled bool
	// Others are the other releases of the cluster whose keys and node rules are known.
	Others []Release
	// Unseen is why there may be more releases than Others. Nil means that there are no more.
	Unseen error

	// A release is recognized by these objects. It has one of them, or both.
	daemonSet  *appsv1.DaemonSet
	deployment *appsv1.Deployment // of the controller
}

// Known is how much of a release could be read. Each level includes the levels before it.
type Known int

// The levels: the keys of the taints and the label suffice to remove taints, the node rules to have nodes verified again.
const (
	Unreadable  Known = iota // nothing, not even the name of the ConfigMap; or a request has failed
	DefaultKeys              // nothing: the ConfigMap with the settings is gone. The keys are taken to be the defaults.
	Keys                     // the keys of the taints and the label, but not the template of the workers
	NodeRules                // the template too, which has the node rules, but the settings are invalid: no pod starts with them
	Everything
)

// limit notes what is wrong with the release, and how much of it is known in spite of that.
func (r *Release) limit(known Known, invalid error) {
	r.Known, r.Invalid = min(r.Known, known), errors.Join(r.Invalid, invalid)
}

// Remedy returns what to do about Invalid.
func (r Release) Remedy() string {
	if r.Planned != nil {
		return "correct it, and render the manifests again"
	}
	return "correct it and run helm upgrade, or apply the manifests again; until then, open works for named nodes"
}

// TaintKeys returns the keys of the taints that DNS pods must tolerate: the startup taint, and the failed taint if the agent or
// the controller adds it.
func (r Release) TaintKeys() []string {
	keys := []string{r.Agent.TaintKey}
	if slices.Contains(r.Agent.OnTimeout, config.OnTimeoutTaint) || (r.Controller != nil && r.Controller.Retaint) {
		keys = append(keys, r.Agent.FailedTaintKey)
	}
	return keys
}

// Pods lists the pods of the agents, or the workers.
func (r Release) Pods(ctx context.Context, c client.Reader) ([]corev1.Pod, error) {
	var pods corev1.PodList
	err := c.List(ctx, &pods, client.InNamespace(r.Namespace), client.MatchingLabels(fleet.OwnLabels(r.Template.Labels)))
	return pods.Items, err
}

// IsOnly reports whether the cluster has no other release.
func (r Release) IsOnly() bool { return len(r.Others) == 0 && r.Unseen == nil }

// WithOthers returns the release, followed by the others of the cluster.
func (r Release) WithOthers() []Release { return append([]Release{r}, r.Others...) }

// Flags returns the flags that choose the release.
func (r Release) Flags() string { return "--namespace " + r.Namespace + " --release " + r.Name }

// Command returns a command of the plugin about the release.
func (r Release) Command(arguments string) string {
	if !r.IsOnly() {
		arguments += " " + r.Flags()
	}
	return "kubectl node-ready " + arguments
}

// addOthers adds the releases of a cluster. Those with the same name as a known one are older.
func (r *Release) addOthers(all []Release, unseen error) {
	r.Unseen = errors.Join(r.Unseen, unseen)
	for _, other := range all {
		isSame := func(known Release) bool { return known.Flags() == other.Flags() }
		switch {
		case slices.ContainsFunc(r.WithOthers(), isSame):
		case other.Known < NodeRules:
			r.Unseen = errors.Join(r.Unseen, fmt.Errorf("the release %s/%s: %w", other.Namespace, other.Name, other.Invalid))
		default:
			r.Others = append(r.Others, other)
		}
	}
}

// RemovedElsewhere returns the other release that removes the taint with this key from node. If that may be a release that could
// not be read, it returns Unseen. It returns neither if the taint is left to this release, such as the startup taint of any node
// that this release's own rules select.
func (r Release) RemovedElsewhere(node *corev1.Node, key string) (*Release, error) {
	taints := fleet.Taints(node)
	isFailed := key == r.Settings.Keys.FailedTaintKey // the controller of any release may have added it
	isSelected := r.Selects(node)
	if isSelected && !isFailed || isFailed && r.Settings.IsRetainted(taints) {
		return nil, nil
	}
	for i := range r.Others {
		other := r.Others[i].Settings
		removes := other.Keys.Removes(nodepatch.Taint{Key: key}) && other.Rules.Select(node)
		if removes && !isSelected || key == other.Keys.FailedTaintKey && other.IsRetainted(taints) {
			return &r.Others[i], nil
		}
	}
	return nil, r.Unseen
}

// Selects reports whether the node rules of an installed release are known and select node.
func (r Release) Selects(node *corev1.Node) bool {
	return r.Known >= NodeRules && !r.NotInstalled && r.Settings.Rules.Select(node)
}

// Find finds the releases with a namespace and a name, either of which may be empty. The error says what to do if there is none,
// or if there are several and one is wanted.
func Find(ctx context.Context, c client.Reader, namespace, name string, one bool) (found []Release, err error) {
	all, unseen, err := readAll(ctx, c, namespace)
	var choices []string
	for _, r := range all {
		if (namespace == "" || r.Namespace == namespace) && (name == "" || r.Name == name) {
			r.addOthers(all, unseen)
			found, choices = append(found, r), append(choices, r.Flags())
		}
	}
	switch {
	case one && len(found) > 1:
		return nil, fmt.Errorf("there are %d releases of kube-node-ready: choose one with %s",
			len(found), strings.Join(choices, ", or "))
	case err != nil || len(found) > 0:
		return found, err
	}
	where := "any namespace"
	if namespace != "" {
		where = "the namespace " + namespace
	}
	return nil, fmt.Errorf("no release %sof kube-node-ready in %s (no DaemonSet or Deployment with the label %s=%s): check "+
		"--context, --namespace and --release, or render the whole chart; before the installation, "+
		"run helm template ... | kubectl node-ready doctor -f -", strings.TrimPrefix(name+" ", " "), where, partOf, product)
}

// readAll reads every release of a cluster. If only the namespace may be listed, it reads the releases there and returns unseen.
func readAll(ctx context.Context, c client.Reader, namespace string) (all []Release, unseen, err error) {
	found, err := list(ctx, c, "")
	if apierrors.IsForbidden(err) && namespace != "" {
		unseen = fmt.Errorf("the releases in other namespaces: %w", err)
		found, err = list(ctx, c, namespace)
	}
	if apierrors.IsForbidden(err) && namespace == "" {
		err = fmt.Errorf("%w\ntry: --namespace with the release's namespace", err)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("looking for kube-node-ready: %w", err)
	}
	for _, choice := range slices.Sorted(maps.Keys(found)) {
		found[choice].read(ctx, c)
		all = append(all, *found[choice])
	}
	return all, unseen, nil
}

// list returns the releases, of which only the objects are known, by the flags that choose them.
func list(ctx context.Context, c client.Reader, namespace string) (map[string]*Release, error) {
	found := make(map[string]*Release)
	of := func(o client.Object) *Release {
		release := Release{Namespace: o.GetNamespace(), Name: o.GetLabels()[instance]}
		if found[release.Flags()] == nil {
			found[release.Flags()] = &release
		}
		return found[release.Flags()]
	}
	selector := client.MatchingLabels{partOf: product}
	var sets appsv1.DaemonSetList
	var deployments appsv1.DeploymentList
	err := errors.Join(c.List(ctx, &sets, client.InNamespace(namespace), selector),
		c.List(ctx, &deployments, client.InNamespace(namespace), selector))
	for i := range sets.Items {
		of(&sets.Items[i]).daemonSet = &sets.Items[i]
	}
	for i := range deployments.Items {
		of(&deployments.Items[i]).deployment = &deployments.Items[i]
	}
	return found, err
}
