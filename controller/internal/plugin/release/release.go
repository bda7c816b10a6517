// Package release finds an installation of the chart in a cluster, and reads what was decided there.
package release

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
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

// Release is one installation of the chart.
type Release struct {
	Name, Namespace string
	// Fullname is the name of the agent's objects; the controller's is Fullname-controller.
	Fullname   string
	Agent      config.Config
	Controller *config.Controller // nil: there is none
	// Template is that of the agent's pods, or in controller mode of the workers.
	Template *corev1.PodTemplateSpec
	Settings fleet.Settings
	// Invalid says why a pod would not start with the settings, or that their ConfigMap is gone. Then Agent has only the keys of the
	// taints and the label, the rest is the defaults: enough to remove the taints of nodes, and to verify them again.
	Invalid error
	// NodeRulesUnknown means that the template of the workers is gone (Invalid says so): enough to remove their taints.
	NodeRulesUnknown bool
	// KeysUnknown means that the ConfigMap with the settings is gone (Invalid says so): the keys of the taints are the defaults.
	KeysUnknown bool
	// NotInstalled means that the cluster has no release: this is what would be installed.
	NotInstalled bool
	// Planned are the manifests that the release was read from; nil: from the cluster, or it is the chart's default.
	Planned Manifests
}

// Remedy says what to do about Invalid.
func (r Release) Remedy() string {
	works := "open and verify still work"
	switch {
	case r.Planned != nil:
		return "correct it, and render the manifests again"
	case r.KeysUnknown:
		works = "open works for named nodes, and removes the taints with the default keys"
	case r.NodeRulesUnknown:
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

// objects are those that a release is recognized by.
type objects struct {
	daemonSet  *appsv1.DaemonSet
	controller *appsv1.Deployment
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
	where, source, remedy := " in any namespace", "", "check --context, --namespace and --release"
	if namespace != "" {
		where = " in the namespace " + namespace
	}
	if _, planned := c.(Manifests); planned {
		source, remedy = " in the manifests", "render the whole chart, and check --namespace and --release"
	}
	switch len(all) {
	case 0:
		return Release{}, fmt.Errorf("no release %sof kube-node-ready%s%s (no DaemonSet or Deployment with the label %s=%s): %s",
			strings.TrimPrefix(name+" ", " "), source, where, partOf, product, remedy)
	case 1:
		for key, found := range all {
			get := func(name string) (*corev1.ConfigMap, error) {
				stored := new(corev1.ConfigMap)
				return stored, c.Get(ctx, client.ObjectKey{Namespace: key.Namespace, Name: name}, stored)
			}
			return read(Release{Name: key.Name, Namespace: key.Namespace}, found, get)
		}
	}
	var names []string
	for key := range all {
		names = append(names, fmt.Sprintf("--namespace %s --release %s", key.Namespace, key.Name))
	}
	slices.Sort(names)
	return Release{}, fmt.Errorf("there are %d releases of kube-node-ready%s: choose one with %s",
		len(all), source, strings.Join(names, ", or "))
}

func list(ctx context.Context, c client.Reader, namespace string, selector client.MatchingLabels) (
	map[types.NamespacedName]*objects, error) {
	found := make(map[types.NamespacedName]*objects)
	at := func(o client.Object) *objects {
		key := types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetLabels()[instance]}
		if found[key] == nil {
			found[key] = new(objects)
		}
		return found[key]
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
		at(&sets.Items[i]).daemonSet = &sets.Items[i]
	}
	for i := range deployments.Items {
		at(&deployments.Items[i]).controller = &deployments.Items[i]
	}
	return found, nil
}

// read reads the settings of a release, as its pods do: the ConfigMap, and the variables of the template.
func read(r Release, found *objects, get configMaps) (Release, error) {
	if found.daemonSet != nil {
		r.Template = &found.daemonSet.Spec.Template
	} else {
		template, err := workerTemplate(get, found.controller)
		if template == nil {
			return Release{}, err
		}
		r.Template, r.Invalid, r.NodeRulesUnknown = template, err, err != nil
	}
	variables, fullname, err := environment(get, r.Template)
	if err != nil && !apierrors.IsNotFound(err) {
		return Release{}, err
	}
	r.Fullname, r.KeysUnknown = fullname, err != nil
	if err == nil {
		if r.Agent, err = config.Parse([]string{"--dry-run"}, variables.lookup, io.Discard); err != nil { // without a node's name
			err = fmt.Errorf("settings in the ConfigMap %s/%s: %w", r.Namespace, fullname, err)
		}
	}
	if err != nil {
		r.Invalid = errors.Join(r.Invalid, err)
		keys := []string{"TAINT_KEY", "FAILED_TAINT_KEY", "ALSO_REMOVE_TAINTS", "VERIFIED_LABEL"}
		maps.DeleteFunc(variables, func(name, _ string) bool { return !slices.Contains(keys, name) })
		if r.Agent, err = config.Parse([]string{"--dry-run"}, variables.lookup, io.Discard); err != nil {
			return Release{}, r.Invalid
		}
	}
	if found.controller != nil && r.Invalid == nil {
		r.Controller, r.Invalid = readController(get, found.controller)
	}
	r.Settings = settings(r, found.daemonSet == nil)
	return r, nil
}

// readController reads the controller's own settings.
func readController(get configMaps, controller *appsv1.Deployment) (*config.Controller, error) {
	variables, _, err := environment(get, &controller.Spec.Template)
	if err != nil {
		return nil, err
	}
	settings, err := config.ParseController(nil, variables.lookup, io.Discard)
	if err != nil {
		return nil, fmt.Errorf("settings of the Deployment %s/%s: %w", controller.Namespace, controller.Name, err)
	}
	return &settings, nil
}

// settings returns the settings of the controller. Its own durations never end: this process sees the cluster once.
func settings(r Release, workers bool) fleet.Settings {
	const forEver = time.Duration(math.MaxInt64)
	s := fleet.NewSettings(r.Agent, r.Template)
	s.Workers = workers
	s.NotStartedAfter, s.SilentAfter, s.FailedAfter, s.NoAgentFor = forEver, forEver, forEver, forEver
	if r.Controller != nil {
		s.FailedTaintValue = r.Controller.AgentName
	}
	return s
}
