package release

import (
	"cmp"
	"context"
	_ "embed" // the chart's manifest

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// manifest is what the chart renders by default: `make manifests` writes it.
//
//go:embed chart.yaml
var manifest string

// FindOrDefault is Find. For a cluster without a release it returns the one that the chart installs by default, so that the
// cluster can be looked at before: into this namespace, else into the chart's.
func FindOrDefault(ctx context.Context, c client.Reader, namespace, name string) (Release, error) {
	if all, err := list(ctx, c, "", client.MatchingLabels{partOf: product}); err != nil || len(all) > 0 {
		return Find(ctx, c, namespace, name)
	}
	defaults, _ := parseManifests("", manifest)
	r, err := Find(ctx, defaults, "", "")
	r.Name, r.Namespace, r.NotInstalled = cmp.Or(name, r.Name), cmp.Or(namespace, r.Namespace), true
	return r, err
}
