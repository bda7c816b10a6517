package installation

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/yaml"
)

// Manifests are rendered objects. They are read like a cluster that has only these.
type Manifests []client.Object

// FindInFiles finds the release in manifests to be installed beside the releases of the cluster; the file - is stdin. The error
// has every mistake in the manifests.
func FindInFiles(ctx context.Context, c client.Reader, files []string, in io.Reader, namespace, name string) ([]Release, error) {
	planned, mistakes := readManifests(files, in)
	if len(planned) == 0 {
		return nil, cmp.Or(mistakes, errors.New("no manifests in --filename: if it is empty, run helm template alone"))
	}
	found, err := Find(ctx, planned, namespace, name, true)
	if err = errors.Join(mistakes, err); err != nil {
		return nil, err
	}
	installed, unseen, err := readAll(ctx, c, namespace)
	found[0].addOthers(installed, unseen)
	isSame := func(r Release) bool { return r.Flags() == found[0].Flags() }
	found[0].Planned, found[0].NotInstalled = planned, !slices.ContainsFunc(installed, isSame)
	return found, err
}

func readManifests(files []string, stdin io.Reader) (all Manifests, mistakes error) {
	for _, name := range files {
		text, err := os.ReadFile(name)
		if name == "-" {
			text, err = io.ReadAll(stdin)
		}
		found, unreadable := parseManifests(name, string(text))
		all, mistakes = append(all, found...), errors.Join(mistakes, err, unreadable)
	}
	return all, mistakes
}

// parseManifests returns the objects of a file. It skips kinds that Kubernetes itself does not have.
func parseManifests(name, text string) (found Manifests, mistakes error) {
	if strings.ContainsRune(text, 0) { // YAML has none
		return nil, fmt.Errorf("%s is not UTF-8; PowerShell's > writes UTF-16: "+
			"use helm template ... | Set-Content -Encoding utf8 %[1]s, or pipe the manifests to -f -", name)
	}
	text = strings.TrimPrefix(text, "\ufeff") // which Set-Content writes
	line := 1
	for document := range strings.SplitSeq(strings.TrimPrefix(text, "---"), "\n---") {
		var objects Manifests
		// With these empty lines the parser's errors name the line of the file. A document of comments is null.
		asJSON, err := yaml.YAMLToJSON([]byte(strings.Repeat("\n", line-1) + document))
		if err == nil && string(asJSON) != "null" {
			objects, err = decode(asJSON)
		}
		if err != nil {
			mistakes = errors.Join(mistakes, fmt.Errorf("%s: the document at line %d is no manifest: %w: "+
				"correct it, or pass what helm template prints, not values", name, line, err))
		}
		found = append(found, objects...)
		line += strings.Count(document, "\n") + 1
	}
	return found, mistakes
}

// decode returns an object, or the items of a List.
func decode(asJSON []byte) (found Manifests, err error) {
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(asJSON, nil, nil)
	switch {
	case runtime.IsNotRegisteredError(err):
		return nil, nil
	case runtime.IsMissingKind(err):
		return nil, errors.New("it has no kind") // instead of the whole document
	}
	switch known := object.(type) {
	case client.Object:
		found = Manifests{known}
	case *corev1.List:
		for _, item := range known.Items {
			objects, failed := decode(item.Raw)
			found, err = append(found, objects...), errors.Join(err, failed)
		}
	}
	return found, err
}

// Get implements client.Reader. Only ConfigMaps are read by name.
func (m Manifests) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	wanted, isConfigMap := into.(*corev1.ConfigMap)
	for _, object := range m {
		if stored, ok := object.(*corev1.ConfigMap); ok && isConfigMap && client.ObjectKeyFromObject(stored) == key {
			stored.DeepCopyInto(wanted)
			return nil
		}
	}
	return apierrors.NewNotFound(corev1.Resource("configmaps"), key.Name)
}

// List implements client.Reader for namespaces and labels.
func (m Manifests) List(_ context.Context, into client.ObjectList, options ...client.ListOption) error {
	wanted := client.ListOptions{LabelSelector: labels.Everything()}
	wanted.ApplyOptions(options)
	list, err := apiutil.GVKForObject(into, scheme.Scheme)
	var found []runtime.Object
	for _, object := range m {
		kind, _ := apiutil.GVKForObject(object, scheme.Scheme) // the objects were decoded with this scheme
		isKind := kind.GroupVersion() == list.GroupVersion() && kind.Kind+"List" == list.Kind
		isInNamespace := wanted.Namespace == "" || wanted.Namespace == object.GetNamespace()
		if isKind && isInNamespace && wanted.LabelSelector.Matches(labels.Set(object.GetLabels())) {
			found = append(found, object)
		}
	}
	return errors.Join(err, meta.SetList(into, found))
}
