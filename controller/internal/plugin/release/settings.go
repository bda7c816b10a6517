package release

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/internal/config"
)

// read reads a release from its objects. The error says why the API server could not be asked, or that not even the keys of the
// taints are usable.
func read(ctx context.Context, c client.Reader, found *objects) (Release, error) {
	r := Release{Name: found.name, Namespace: found.namespace, Known: Everything}
	get := func(name string) (map[string]string, bool, error) {
		stored := new(corev1.ConfigMap)
		err := c.Get(ctx, client.ObjectKey{Namespace: r.Namespace, Name: name}, stored)
		return stored.Data, err == nil, client.IgnoreNotFound(err)
	}
	if err := r.readTemplate(get, found); err != nil {
		return Release{}, err
	}
	if err := r.readAgent(get); err != nil {
		return Release{}, err
	}
	if found.controller != nil && r.Invalid == nil {
		r.readController(get, found.controller)
	}
	r.Settings = r.fleetSettings(found.daemonSet == nil)
	return r, nil
}

// configMaps reads the data of a ConfigMap of the release by its name. It is no error if there is none.
type configMaps func(name string) (data map[string]string, found bool, err error)

// readTemplate reads the template of the agents or the workers. The controller's own template stands in for that of the workers if
// that is gone or invalid: its variables name the same settings.
func (r *Release) readTemplate(get configMaps, found *objects) error {
	if found.daemonSet != nil {
		r.Template = &found.daemonSet.Spec.Template
		return nil
	}
	template, invalid, err := workerTemplate(get, found.controller)
	if err != nil {
		return err
	}
	r.Template = template
	if invalid != nil {
		r.Template = &found.controller.Spec.Template
		r.limit(Keys, invalid)
	}
	return nil
}

// workerTemplate reads the template that the controller creates workers from. invalid says why the release has no valid one.
func workerTemplate(get configMaps, controller *appsv1.Deployment) (template *corev1.PodTemplateSpec, invalid, err error) {
	for _, volume := range controller.Spec.Template.Spec.Volumes {
		if volume.ConfigMap == nil {
			continue
		}
		name := volume.ConfigMap.Name
		data, found, err := get(name)
		switch text, hasTemplate := data["agent.yaml"]; {
		case err != nil:
			return nil, nil, fmt.Errorf("template of the workers: %w", err)
		case !found:
			return nil, fmt.Errorf("template of the workers: there is no ConfigMap %s/%s", controller.Namespace, name), nil
		case hasTemplate:
			template, err = parseTemplate(text)
			if err != nil {
				return nil, fmt.Errorf("template of the workers in the ConfigMap %s: %w", name, err), nil
			}
			return template, nil, nil
		}
	}
	return nil, fmt.Errorf("the Deployment %s/%s has no ConfigMap with the template of the workers (agent.yaml)",
		controller.Namespace, controller.Name), nil
}

func parseTemplate(text string) (*corev1.PodTemplateSpec, error) {
	template := new(corev1.PodTemplateSpec)
	if err := yaml.Unmarshal([]byte(text), template); err != nil {
		return nil, err
	}
	_, err := settingsName(template)
	return template, err
}

// settingsName returns the name of the ConfigMap that the first container of a template has its variables from.
func settingsName(template *corev1.PodTemplateSpec) (string, error) {
	for _, container := range template.Spec.Containers[:min(1, len(template.Spec.Containers))] {
		for _, source := range container.EnvFrom {
			if source.ConfigMapRef != nil {
				return source.ConfigMapRef.Name, nil
			}
		}
	}
	return "", errors.New("its first container names no ConfigMap with settings")
}

// readAgent reads the agent's settings as its pods do: from the ConfigMap, and from the variables of the template. From invalid
// ones, it takes only the keys.
func (r *Release) readAgent(get configMaps) error {
	name, err := settingsName(r.Template)
	if err != nil {
		return fmt.Errorf("the release's pod template: %w", err)
	}
	r.Fullname = name
	data, found, err := get(name)
	if err != nil {
		return fmt.Errorf("settings of the release: %w", err)
	}
	environment := environmentOf(r.Template, data)
	if found {
		if r.Agent, err = parseAgent(environment); err == nil {
			return nil
		}
		r.limit(NodeRules, fmt.Errorf("settings in the ConfigMap %s/%s: %w", r.Namespace, name, err))
	} else {
		r.limit(DefaultKeys, fmt.Errorf("settings of the release: there is no ConfigMap %s/%s", r.Namespace, name))
	}
	keys := []string{"TAINT_KEY", "FAILED_TAINT_KEY", "ALSO_REMOVE_TAINTS", "VERIFIED_LABEL"}
	maps.DeleteFunc(environment, func(name, _ string) bool { return !slices.Contains(keys, name) })
	if r.Agent, err = parseAgent(environment); err != nil {
		return r.Invalid // it has the same mistake
	}
	return nil
}

func parseAgent(environment variables) (config.Config, error) {
	return config.Parse([]string{"--dry-run"}, environment.lookup, io.Discard) // without --dry-run a node's name is required
}

// readController reads the controller's own settings.
func (r *Release) readController(get configMaps, controller *appsv1.Deployment) {
	settings, err := parseController(get, &controller.Spec.Template)
	if err != nil {
		r.limit(NodeRules, fmt.Errorf("settings of the Deployment %s/%s: %w", controller.Namespace, controller.Name, err))
		return
	}
	r.Controller = &settings
}

func parseController(get configMaps, template *corev1.PodTemplateSpec) (config.Controller, error) {
	name, err := settingsName(template)
	if err != nil {
		return config.Controller{}, err
	}
	data, found, err := get(name)
	if err == nil && !found {
		err = fmt.Errorf("there is no ConfigMap %s", name)
	}
	if err != nil {
		return config.Controller{}, err
	}
	return config.ParseController(nil, environmentOf(template, data).lookup, io.Discard)
}

// variables is the environment of a container.
type variables map[string]string

func (v variables) lookup(key string) (string, bool) {
	value, found := v[key]
	return value, found
}

// environmentOf returns the variables of a template's first container: those of its ConfigMap, and its own.
func environmentOf(template *corev1.PodTemplateSpec, ofConfigMap map[string]string) variables {
	found := variables{}
	maps.Copy(found, ofConfigMap)
	for _, variable := range template.Spec.Containers[0].Env {
		if variable.ValueFrom == nil {
			found[variable.Name] = variable.Value
		} else if variable.Name == "NODE_IP" { // each node has its own, and settings that use it are not read without one
			found[variable.Name] = "192.0.2.1"
		}
	}
	return found
}

// fleetSettings returns the settings that the fleet is judged by. This process sees the cluster once, so what is judged by the time
// that passes never comes.
func (r Release) fleetSettings(workers bool) fleet.Settings {
	const never = time.Duration(math.MaxInt64)
	s := fleet.NewSettings(r.Agent, r.Template)
	s.Workers = workers
	s.NotStartedAfter, s.SilentAfter, s.FailedAfter, s.NoAgentFor = never, never, never, never
	if r.Controller != nil {
		s.FailedTaintValue = r.Controller.AgentName
	}
	return s
}
