package release

import (
	"bytes"
	"cmp"
	"context"
	_ "embed" // the chart's manifest
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// manifest is what the chart renders by default: `make manifests` writes it.
//
//go:embed chart.yaml
var manifest []byte

// FindOrDefault is Find. For a cluster without a release it returns the one that the chart installs by default, so that the
// cluster can be looked at before: into this namespace, else into that of a former release, else into the chart's.
func FindOrDefault(ctx context.Context, c client.Reader, namespace, name string) (Release, error) {
	if all, err := list(ctx, c, "", client.MatchingLabels{partOf: product}); err != nil || len(all) > 0 {
		return Find(ctx, c, namespace, name)
	}
	former, err := list(ctx, c, "", client.MatchingLabels{appName: product}) // charts before 1.0 have no other label
	if err != nil {
		return Release{}, err
	}
	r, err := byDefault(ctx)
	var names []string
	for key := range former {
		names = append(names, key.Name+" in the namespace "+key.Namespace)
		if len(former) == 1 {
			r.Namespace, r.Name = key.Namespace, key.Name
		}
	}
	slices.Sort(names)
	r.Former = strings.Join(names, ", ")
	r.Namespace, r.Name = cmp.Or(namespace, r.Namespace), cmp.Or(name, r.Name)
	return r, err
}

func byDefault(ctx context.Context) (Release, error) {
	var found objects
	var settings stored
	_, documents, _ := bytes.Cut(manifest, []byte("\n---\n")) // the first is a comment
	for document := range bytes.SplitSeq(documents, []byte("\n---\n")) {
		object, _, err := scheme.Codecs.UniversalDeserializer().Decode(document, nil, nil)
		if err != nil {
			return Release{}, fmt.Errorf("the chart's manifest: %w", err)
		}
		switch object := object.(type) {
		case *appsv1.DaemonSet:
			found.daemonSet = object
		case *corev1.ConfigMap:
			settings.ConfigMap = object
		}
	}
	r, err := read(ctx, settings, Release{Name: product, Namespace: found.daemonSet.Namespace}, &found)
	r.NotInstalled = true
	return r, err
}

// stored reads one ConfigMap, whatever its name.
type stored struct {
	client.Reader
	*corev1.ConfigMap
}

// Get implements client.Reader.
func (s stored) Get(_ context.Context, key client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	into, ok := object.(*corev1.ConfigMap)
	if !ok {
		return fmt.Errorf("the chart's manifest has no %T %s", object, key)
	}
	s.DeepCopyInto(into)
	return nil
}
