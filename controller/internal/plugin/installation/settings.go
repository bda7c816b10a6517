package installation

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/internal/config"
)

// configMaps reads the data of a ConfigMap of the release by its name.
type configMaps func(name string) (map[string]string, error)

// read reads the settings of a release. It is Unreadable if a request has failed, or not even the keys of the taints are valid.
func (r *Release) read(ctx context.Context, c client.Reader) {
	r.Known = Everything
	var failed error // a request: the release may be valid
	get := func(name string) (map[string]string, error) {
		stored := new(corev1.ConfigMap)
		err := c.Get(ctx, client.ObjectKey{Namespace: r.Namespace, Name: name}, stored)
		failed = cmp.Or(failed, client.IgnoreNotFound(err))
		return stored.Data, err
	}
	r.readTemplate(get)
	data, err := r.readAgent(get)
	if r.deployment != nil && err == nil && r.Invalid == nil {
		r.readController(data)
	}
	cfg := config.Controller{Config: r.Agent} // the agent's settings are enough to judge the fleet
	if r.deployment != nil {
		cfg.AgentName = r.Fullname
	}
	if r.daemonSet == nil {
		cfg.DeploymentMode = config.ModeController
	}
	r.Settings = fleet.NewSettings(cfg, r.Template).WithoutTime()
	if failed != nil {
		err = fmt.Errorf("settings of the release: %w", failed)
	}
	if err != nil {
		r.Known, r.Invalid = Unreadable, err
	}
}

// readTemplate reads the template of the agents or the workers. If the workers' template is gone or invalid, the controller's own
// template stands in for it: its variables name the same settings.
func (r *Release) readTemplate(get configMaps) {
	if r.daemonSet != nil {
		r.Template = &r.daemonSet.Spec.Template
		return
	}
	r.Template = new(corev1.PodTemplateSpec)
	name := r.deployment.Name // the ConfigMap has the same
	data, err := get(name)
	if err == nil {
		if err = yaml.Unmarshal([]byte(data["agent.yaml"]), r.Template); err == nil {
			_, err = settingsName(r.Template)
		}
		if err != nil {
			err = fmt.Errorf("agent.yaml in the ConfigMap %s: %w", name, err)
		}
	}
	if err != nil {
		r.limit(Keys, fmt.Errorf("template of the workers: %w", err))
		r.Template = &r.deployment.Spec.Template
	}
}

// readAgent reads the agent's settings as its pods do, and returns the data of their ConfigMap. If they are gone or invalid, it
// takes only the keys.
func (r *Release) readAgent(get configMaps) (data map[string]string, err error) {
	if r.Fullname, err = settingsName(r.Template); err != nil {
		return nil, fmt.Errorf("the release's pod template: %w", err)
	}
	arguments := []string{"--dry-run"} // else a node's name is required
	data, err = get(r.Fullname)
	environment := environmentOf(data, r.Template)
	if err != nil {
		r.limit(DefaultKeys, fmt.Errorf("settings of the release: %w", err))
	} else {
		if r.Agent, err = config.Parse(arguments, environment.lookup, io.Discard); err == nil {
			return data, nil
		}
		r.limit(NodeRules, fmt.Errorf("settings in the ConfigMap %s/%s: %w", r.Namespace, r.Fullname, err))
	}
	keys := []string{"TAINT_KEY", "FAILED_TAINT_KEY", "ALSO_REMOVE_TAINTS", "VERIFIED_LABEL"}
	maps.DeleteFunc(environment, func(name, _ string) bool { return !slices.Contains(keys, name) })
	if r.Agent, err = config.Parse(arguments, environment.lookup, io.Discard); err != nil {
		return nil, r.Invalid // it has the same mistake
	}
	return data, nil
}

// readController reads the controller's own settings. Its pods have the agent's ConfigMap too.
func (r *Release) readController(data map[string]string) {
	environment := environmentOf(data, &r.deployment.Spec.Template)
	settings, err := config.ParseController(nil, environment.lookup, io.Discard)
	if err != nil {
		r.limit(NodeRules, fmt.Errorf("settings of the Deployment %s/%s: %w", r.Namespace, r.deployment.Name, err))
		return
	}
	r.Controller = &settings
}

// variables is the environment of a container.
type variables map[string]string

func (v variables) lookup(key string) (string, bool) {
	value, found := v[key]
	return value, found
}

// environmentOf returns the variables of a template's first container: from the ConfigMap, and its own.
func environmentOf(data map[string]string, template *corev1.PodTemplateSpec) variables {
	environment := variables{}
	maps.Copy(environment, data)
	for _, container := range template.Spec.Containers[:min(1, len(template.Spec.Containers))] {
		for _, variable := range container.Env {
			if variable.ValueFrom == nil {
				environment[variable.Name] = variable.Value
			} else if variable.Name == "NODE_IP" { // each node has its own, and settings that use it are not read without one
				environment[variable.Name] = "192.0.2.1"
			}
		}
	}
	return environment
}

// settingsName returns the name of the ConfigMap with the settings, which is in the environment of a template's first container.
func settingsName(template *corev1.PodTemplateSpec) (string, error) {
	if containers := template.Spec.Containers; len(containers) > 0 {
		for _, source := range containers[0].EnvFrom {
			if source.ConfigMapRef != nil {
				return source.ConfigMapRef.Name, nil
			}
		}
	}
	return "", errors.New("its first container names no ConfigMap with settings")
}
