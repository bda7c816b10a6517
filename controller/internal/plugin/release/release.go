// Package release finds an installation of the chart in a cluster, and reads what was decided there.
package release

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
)

// Labels of the chart's objects. The name can be overridden, what it is part of cannot.
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
	Controller *config.Controller // nil: there is none
	// Template is that of the agent's pods, or in controller mode of the workers.
	Template *corev1.PodTemplateSpec
	Settings fleet.Settings
	// Known is how much of the release could be read. Invalid says what could not; it is nil if Known is Everything.
	Known   Known
	Invalid error
	// Planned are the manifests that the release was read from; nil: it was read from the cluster.
	Planned Manifests
	// NotInstalled means that the release was read from manifests, and that the cluster has none.
	NotInstalled bool
}

// Known is how much of a release could be read. Each level includes the levels before it.
type Known int

// The levels: the keys of the taints and the label suffice to remove taints, the node rules to have nodes verified again.
const (
	DefaultKeys Known = iota // nothing: the ConfigMap with the settings is gone. The keys are taken to be the defaults.
	Keys                     // the keys of the taints and the label, but not the template of the workers
	NodeRules                // the template too, which has the node rules, but the settings are invalid: no pod starts with them
	Everything
)

// limit notes what is wrong with the release, and how much of it is known in spite of that.
func (r *Release) limit(known Known, invalid error) {
	r.Known, r.Invalid = min(r.Known, known), errors.Join(r.Invalid, invalid)
}

// Remedy says what to do about Invalid.
func (r Release) Remedy() string {
	if r.Planned != nil {
		return "correct it, and render the manifests again"
	}
	works := "open and verify still work"
	switch r.Known {
	case DefaultKeys:
		works = "open works for named nodes, and removes the taints with the default keys"
	case Keys:
		works = "open still works"
	}
	return "correct it and run helm upgrade, or apply the manifests again; " + works
}

// TaintKeys returns the keys of the taints that DNS pods must tolerate: the startup taint's, and the failed taint's if anybody
// adds it.
func (r Release) TaintKeys() []string {
	keys := []string{r.Agent.TaintKey}
	if slices.Contains(r.Agent.OnTimeout, config.OnTimeoutTaint) || (r.Controller != nil && r.Controller.Retaint) {
		keys = append(keys, r.Agent.FailedTaintKey)
	}
	return keys
}

// Labels select the objects of the release.
func (r Release) Labels() client.MatchingLabels {
	return client.MatchingLabels{partOf: product, instance: r.Name}
}

// Pods lists the pods of the agents, or the workers.
func (r Release) Pods(ctx context.Context, c client.Reader) ([]corev1.Pod, error) {
	var pods corev1.PodList
	err := c.List(ctx, &pods, client.InNamespace(r.Namespace), client.MatchingLabels(fleet.OwnLabels(r.Template.Labels)))
	return pods.Items, err
}

// objects are what a release is recognized by.
type objects struct {
	namespace, name string // of the release
	daemonSet       *appsv1.DaemonSet
	controller      *appsv1.Deployment
}

// Find finds the release in a namespace ("": in all) with a name ("": any). The error says what to do if there is none, or if
// there are several.
func Find(ctx context.Context, c client.Reader, namespace, name string) (Release, error) {
	selector := client.MatchingLabels{partOf: product}
	if name != "" {
		selector[instance] = name
	}
	all, err := list(ctx, c, namespace, selector)
	if err != nil {
		return Release{}, err
	}
	where, source := " in any namespace", ""
	remedy := "check --context, --namespace and --release; before the installation, " +
		"run helm template ... | kubectl node-ready doctor -f -"
	if namespace != "" {
		where = " in the namespace " + namespace
	}
	if _, planned := c.(Manifests); planned {
		source, remedy = " in the manifests", "render the whole chart, and check --namespace and --release"
	}
	choices := slices.Sorted(maps.Keys(all))
	switch len(choices) {
	case 0:
		return Release{}, fmt.Errorf("no release %sof kube-node-ready%s%s (no DaemonSet or Deployment with the label %s=%s): %s",
			strings.TrimPrefix(name+" ", " "), source, where, partOf, product, remedy)
	case 1:
		return read(ctx, c, all[choices[0]])
	}
	return Release{}, fmt.Errorf("there are %d releases of kube-node-ready%s: choose one with %s",
		len(choices), source, strings.Join(choices, ", or "))
}

// list returns the objects of each release, by the flags that choose it.
func list(ctx context.Context, c client.Reader, namespace string, selector client.MatchingLabels) (map[string]*objects, error) {
	found := make(map[string]*objects)
	of := func(o client.Object) *objects {
		release := objects{namespace: o.GetNamespace(), name: o.GetLabels()[instance]}
		choice := fmt.Sprintf("--namespace %s --release %s", release.namespace, release.name)
		if found[choice] == nil {
			found[choice] = &release
		}
		return found[choice]
	}
	var sets appsv1.DaemonSetList
	var deployments appsv1.DeploymentList
	err := errors.Join(c.List(ctx, &sets, client.InNamespace(namespace), selector),
		c.List(ctx, &deployments, client.InNamespace(namespace), selector))
	if err != nil {
		if apierrors.IsForbidden(err) && namespace == "" {
			err = fmt.Errorf("%w\ntry: --namespace with the release's namespace", err)
		}
		return nil, fmt.Errorf("looking for kube-node-ready: %w", err)
	}
	for i := range sets.Items {
		of(&sets.Items[i]).daemonSet = &sets.Items[i]
	}
	for i := range deployments.Items {
		of(&deployments.Items[i]).controller = &deployments.Items[i]
	}
	return found, nil
}
