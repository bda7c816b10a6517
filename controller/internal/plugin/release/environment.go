package release

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/yaml"
)

// configMaps reads a ConfigMap of the release by its name.
type configMaps func(name string) (*corev1.ConfigMap, error)

// workerTemplate reads the template that the controller creates workers from. If it is gone or names no settings, the result is
// the controller's, whose variables name the same settings, and an error.
func workerTemplate(get configMaps, controller *appsv1.Deployment) (*corev1.PodTemplateSpec, error) {
	standIn := &controller.Spec.Template
	for _, volume := range standIn.Spec.Volumes {
		if volume.ConfigMap == nil {
			continue
		}
		stored, err := get(volume.ConfigMap.Name)
		if err != nil {
			if !apierrors.IsNotFound(err) {
				standIn = nil
			}
			return standIn, fmt.Errorf("template of the workers: %w", err)
		}
		text, found := stored.Data["agent.yaml"]
		if !found {
			continue
		}
		template := new(corev1.PodTemplateSpec)
		if err = yaml.Unmarshal([]byte(text), template); err == nil && !namesSettings(template) {
			err = errNoSettings
		}
		if err != nil {
			return standIn, fmt.Errorf("template of the workers in the ConfigMap %s: %w", stored.Name, err)
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

// variables is the environment of a container.
type variables map[string]string

func (v variables) lookup(key string) (string, bool) {
	value, found := v[key]
	return value, found
}

// environment returns the variables of a template's first container, and the name of the ConfigMap that they come from. If that
// cannot be read, it returns the other variables and an error.
func environment(get configMaps, template *corev1.PodTemplateSpec) (found variables, name string, err error) {
	if !namesSettings(template) {
		return nil, "", fmt.Errorf("the release's pod template: %w", errNoSettings)
	}
	found = make(variables)
	container := template.Spec.Containers[0]
	for _, source := range container.EnvFrom {
		if source.ConfigMapRef == nil {
			continue
		}
		name = source.ConfigMapRef.Name
		stored, failure := get(name)
		if failure != nil {
			err = fmt.Errorf("settings of the release: %w", failure)
		}
		maps.Copy(found, stored.Data)
	}
	for _, variable := range container.Env {
		if variable.ValueFrom == nil {
			found[variable.Name] = variable.Value
		} else if variable.Name == "NODE_IP" { // each node has its own, and settings that use it are not read without one
			found[variable.Name] = "192.0.2.1"
		}
	}
	return found, name, err
}
