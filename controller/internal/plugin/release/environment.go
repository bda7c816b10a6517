package release

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// workerTemplate reads the template that the controller creates workers from. If it is gone or names no settings, the result is
// one with the controller's variables, which name the same settings, and an error.
func workerTemplate(ctx context.Context, c client.Reader, controller *appsv1.Deployment) (*corev1.PodTemplateSpec, error) {
	standIn := new(corev1.PodTemplateSpec)
	for _, container := range controller.Spec.Template.Spec.Containers {
		variables := corev1.Container{EnvFrom: container.EnvFrom, Env: container.Env}
		standIn.Spec.Containers = append(standIn.Spec.Containers, variables)
	}
	for _, volume := range controller.Spec.Template.Spec.Volumes {
		if volume.ConfigMap == nil {
			continue
		}
		var stored corev1.ConfigMap
		err := c.Get(ctx, client.ObjectKey{Namespace: controller.Namespace, Name: volume.ConfigMap.Name}, &stored)
		text, found := stored.Data["agent.yaml"]
		switch {
		case apierrors.IsNotFound(err):
			return standIn, fmt.Errorf("template of the workers: %w", err)
		case err != nil:
			return nil, fmt.Errorf("template of the workers: %w", err)
		case !found:
			continue
		}
		template := new(corev1.PodTemplateSpec)
		if err := yaml.Unmarshal([]byte(text), template); err != nil {
			return standIn, fmt.Errorf("template of the workers in the ConfigMap %s: %w", stored.Name, err)
		}
		if !namesSettings(template) {
			return standIn, fmt.Errorf("template of the workers in the ConfigMap %s: %w", stored.Name, errNoSettings)
		}
		return template, nil
	}
	return standIn, fmt.Errorf("the Deployment %s/%s has no ConfigMap with the template of the workers (agent.yaml)",
		controller.Namespace, controller.Name)
}

var errNoSettings = errors.New("its first container names no ConfigMap with settings")

// namesSettings reports whether a template's first container has variables of a ConfigMap.
func namesSettings(template *corev1.PodTemplateSpec) bool {
	isConfigMap := func(source corev1.EnvFromSource) bool { return source.ConfigMapRef != nil }
	containers := template.Spec.Containers
	return len(containers) > 0 && slices.ContainsFunc(containers[0].EnvFrom, isConfigMap)
}

// environment returns the variables of a template's first container, and the name of the ConfigMap that they come from. If that
// is gone, it returns the other variables and an error.
func environment(ctx context.Context, c client.Reader, namespace string, template *corev1.PodTemplateSpec) (
	lookup func(string) (string, bool), name string, err error) {
	variables := make(map[string]string)
	var gone error
	if !namesSettings(template) {
		return nil, "", fmt.Errorf("the release's pod template: %w", errNoSettings)
	}
	container := template.Spec.Containers[0]
	for _, source := range container.EnvFrom {
		if source.ConfigMapRef == nil {
			continue
		}
		var stored corev1.ConfigMap
		if err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: source.ConfigMapRef.Name}, &stored); err != nil {
			if err = fmt.Errorf("settings of the release: %w", err); !apierrors.IsNotFound(err) {
				return nil, "", err
			}
			gone = err
		}
		name = source.ConfigMapRef.Name
		maps.Copy(variables, stored.Data)
	}
	for _, variable := range container.Env {
		if variable.ValueFrom == nil {
			variables[variable.Name] = variable.Value
		}
	}
	return func(key string) (string, bool) {
		value, found := variables[key]
		return value, found
	}, name, gone
}
