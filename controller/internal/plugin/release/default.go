package release

import (
	"bytes"
	"cmp"
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
// cluster can be looked at before: into this namespace, else into the chart's.
func FindOrDefault(ctx context.Context, c client.Reader, namespace, name string) (Release, error) {
	if all, err := list(ctx, c, "", client.MatchingLabels{partOf: product}); err != nil || len(all) > 0 {
		return Find(ctx, c, namespace, name)
	}
	var found objects
	var settings *corev1.ConfigMap
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
			settings = object
		}
	}
	r := Release{Name: cmp.Or(name, product), Namespace: cmp.Or(namespace, found.daemonSet.Namespace), NotInstalled: true}
	return read(r, &found, func(string) (*corev1.ConfigMap, error) { return settings, nil })
}
