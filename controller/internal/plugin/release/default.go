package release

import (
	"bytes"
	"context"
	_ "embed" // the chart's manifest
	"fmt"

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
// cluster can be looked at before.
func FindOrDefault(ctx context.Context, c client.Reader, namespace, name string) (Release, error) {
	if namespace == "" && name == "" {
		if all, err := list(ctx, c, "", ""); err == nil && len(all) == 0 {
			return byDefault(ctx)
		}
	}
	return Find(ctx, c, namespace, name)
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
