package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// pathInChart returns where the chart's value for a flag of the agent or the controller is, and "" where the chart has none.
func pathInChart(flag string) string {
	switch flag {
	case "node-name", "pod-namespace", "kubeconfig", "peers-service", "dry-run", "once", "worker", "dns-endpoints", "cluster-domain",
		"agent-name", "agent-template", "health-port", "remove-failed-taints":
		return ""
	case "enable-connectivity-matrix":
		return "config.peers"
	case "retaint":
		return "controller.retaint.enabled"
	case "remediation-mode":
		return "controller.remediation.mode"
	}
	name := ""
	for i, word := range strings.Split(strings.TrimPrefix(flag, "retaint-"), "-") {
		if i > 0 {
			word = strings.ToUpper(word[:1]) + word[1:]
		}
		name += word
	}
	switch flag {
	case "deployment-mode":
		return name
	case "not-started-after", "verify-after-reboot", "max-concurrent-workers":
		return "controller." + name
	case "delete-nodes", "unmet-requirements", "delete-after", "failed-for", "control-group-for":
		return "controller.remediation." + name
	case "retaint-control-group-for", "retaint-cool-down", "retaint-no-agent-for":
		return "controller.retaint." + name
	}
	return "config." + name
}

// asVariable returns what the chart's templates make of a value.
func asVariable(value any) string {
	if list, isList := value.([]any); isList {
		if text, err := json.Marshal(list); err == nil && bytes.HasPrefix(text, []byte("[{")) { // config.require
			return string(text)
		}
		var texts []string
		for _, item := range list {
			texts = append(texts, fmt.Sprint(item))
		}
		return strings.Join(texts, ",")
	}
	return fmt.Sprint(value)
}

// asValues returns what a user may write in values.yaml to mean text.
func asValues(text string) []any {
	var list []any
	for item := range strings.SplitSeq(text, ",") {
		list = append(list, item)
	}
	values := []any{text, list, []any{text}}
	for _, kind := range []string{"condition", "allocatable", "csiDriver", "label", "daemonSet"} {
		of := map[string]any{kind: text}
		values = append(values, []any{of}, []any{of, map[string]any{kind: text, "on": map[string]any{text: true}}},
			[]any{map[string]any{"label": "a", "on": map[string]any{"b": text}}})
	}
	var entries []any
	if err := json.Unmarshal([]byte(text), &entries); err == nil {
		values = append(values, entries)
	}
	if number, err := strconv.ParseFloat(text, 64); err == nil {
		values = append(values, number)
	}
	if isTrue, err := strconv.ParseBool(text); err == nil {
		values = append(values, isTrue)
	}
	return values
}

// mutate changes text in one place, with signs that have a meaning somewhere.
func mutate(random *rand.Rand, text string) string {
	const signs = "aZ019-_./:+,#|[]()=%@?> \t\n\u00e9\u0130"
	at, sign := random.IntN(len(text)+1), string([]rune(signs)[random.IntN(utf8.RuneCountInString(signs))])
	end := min(at+1+random.IntN(3), len(text))
	switch random.IntN(4) {
	case 0:
		return text[:at] + sign + text[at:]
	case 1:
		return text[:at] + text[end:]
	case 2:
		return text[:at] + sign + text[end:]
	}
	return text[:end] + strings.Repeat(text[at:end], 1+random.IntN(70)) + text[end:]
}

// chart is the chart's schema, and what the agent and the controller say to the values that it accepts.
type chart struct {
	*testing.T
	compiled
	root     *schema
	settings []*setting
}

func (c chart) check(values map[string]any) (accepted bool) {
	if !c.accepts(c.root, c.root, values) || isRefusedByTemplates(values) {
		return false
	}
	env := inCluster(map[string]string{"NODE_NAME": "node1", "NODE_IP": "10.0.0.1"})
	for _, s := range c.settings {
		path := pathInChart(s.flag)
		if text := asVariable(at(values, path)); path != "" && (path != "config.metricsLinger" || text != "") {
			env[s.env()] = text
		}
	}
	if env["REMEDIATION_MODE"] == "false" {
		env["REMEDIATION_MODE"] = RemediationOff
	}
	_, err := Parse(nil, lookup(env), new(bytes.Buffer))
	require.NoError(c, err, "the agent refuses what the schema accepts: every new node has a crash loop")
	_, err = ParseController(nil, lookup(env), new(bytes.Buffer))
	require.NoError(c, err, "the controller refuses what the schema accepts")
	return true
}

// isRefusedByTemplates says what kube-node-ready.validate refuses.
func isRefusedByTemplates(values map[string]any) bool {
	entries, _ := at(values, "config.require").([]any)
	return at(values, "config.taintKey") == at(values, "config.failedTaintKey") || slices.ContainsFunc(entries, func(entry any) bool {
		for _, text := range entry.(map[string]any) {
			name := strings.FieldsFunc(fmt.Sprint(text)+"=", func(r rune) bool { return r == '>' || r == '=' })
			if len(name) > 0 && (name[0] == at(values, "config.conditionType") || name[0] == at(values, "config.verifiedLabel")) {
				return true
			}
		}
		return false
	})
}

// at returns the value at a path, and set puts one there, in a copy of the maps on the way.
func at(values any, path string) any {
	for name := range strings.SplitSeq(path, ".") {
		section, _ := values.(map[string]any)
		values = section[name]
	}
	return values
}

func set(values any, path string, value any) map[string]any {
	section, _ := values.(map[string]any)
	section = maps.Clone(section)
	name, rest, isDeeper := strings.Cut(path, ".")
	if isDeeper {
		value = set(section[name], rest, value)
	}
	section[name] = value
	return section
}

// Each value and each mix of values that the schema accepts, the agent and the controller accept: else every new node has a crash loop.
func TestSchemaAcceptsNothingThatTheAgentRefuses(t *testing.T) {
	root := readChart(t)
	c := chart{T: t, compiled: make(compiled), root: root, settings: slices.Concat((&Config{}).settings(), (&Controller{}).settings())}
	random := rand.New(rand.NewPCG(1, 2))
	texts := []string{ModeDaemonSet, ModeController, RemediationOff, RemediationDryRun, RemediationDelete}
	for _, flag := range slices.Sorted(maps.Keys(cases)) {
		for _, value := range cases[flag].good {
			texts = append(texts, value.value)
		}
		for _, value := range cases[flag].bad {
			texts = append(texts, value.value)
		}
	}
	for _, number := range []int{0, 1, 5, 6, 9, 10, 24, 25, 59, 60, 61, 99, 100, 300, 301, 999, 1000, 1440, 1441, 3600, 3601, 86400, 86401, 300000, 300001} {
		for _, unit := range []string{"ms", "s", "m", "h"} {
			texts = append(texts, strconv.Itoa(number)+unit)
		}
	}
	for range 300 {
		texts = append(texts, mutate(random, texts[random.IntN(len(texts))]))
	}

	defaults := root.defaults().(map[string]any)
	defaults["controller"].(map[string]any)["enabled"] = true
	require.True(t, c.check(defaults))
	accepted := make(map[string][]any)
	var paths []string
	for _, s := range c.settings {
		path := pathInChart(s.flag)
		if path == "" || slices.Contains(paths, path) {
			continue
		}
		paths = append(paths, path)
		property := root
		for name := range strings.SplitSeq(path, ".") {
			require.Contains(t, property.Properties, name, "--%s", s.flag)
			property = property.Properties[name]
		}
		for _, text := range texts {
			for _, value := range asValues(text) {
				if c.accepts(root, property, value) {
					accepted[path] = append(accepted[path], value)
					c.check(set(defaults, path, value))
				}
			}
		}
		require.NotEmpty(t, accepted[path], path)
	}
	mixes := 0
	for range 2000 {
		values := defaults
		for range 1 + random.IntN(6) {
			path := paths[random.IntN(len(paths))]
			values = set(values, path, accepted[path][random.IntN(len(accepted[path]))])
		}
		if c.check(values) {
			mixes++
		}
	}
	require.Greater(t, mixes, 300)
}

// The schema and the agent have the same hosts and targets: neither refuses what the other accepts.
func TestChartAndAgentAgreeAboutTargets(t *testing.T) {
	root, patterns := readChart(t), make(compiled)
	for flag, allowed := range map[string]rule{"dns-test-domains": mayWarn(domainOrIP), "network-targets": mayWarn(target)} {
		random := rand.New(rand.NewPCG(1, 2))
		var items []string
		for _, value := range cases[flag].good {
			items = append(items, strings.Split(value.value, ",")...)
		}
		for _, value := range cases[flag].bad {
			items = append(items, strings.Split(value.value, ",")...)
		}
		for known := len(items); len(items) < 20000; {
			once := mutate(random, items[random.IntN(known)])
			items = append(items, once, mutate(random, once))
		}
		item := root.Properties["config"].Properties[strings.TrimPrefix(pathInChart(flag), "config.")].Items
		accepted := 0
		for _, text := range items {
			if strings.TrimSpace(text) != text || text == "" || strings.ContainsAny(text, ",$") || !utf8.ValidString(text) {
				continue // the agent trims items, and drops empty ones
			}
			err := allowed(text)
			require.Equal(t, err == nil, patterns.accepts(root, item, text), "%s %q: %v", flag, text, err)
			if err == nil {
				accepted++
			}
		}
		require.Greater(t, accepted, 1000)
	}
}

// extraEnv of the chart replaces no setting, of the agent or the controller.
func TestChartRefusesSettingsAsExtraEnv(t *testing.T) {
	names := readChart(t).Definitions["variable"].Properties["name"].If.Enum
	for _, s := range slices.Concat((&Config{}).settings(), (&Controller{}).settings()) {
		if !s.flagOnly() {
			require.Contains(t, names, s.env())
		}
	}
	for _, name := range []any{"CLUSTER_CA", "KUBERNETES_SERVICE_HOST", "NODE_IP", "VERDICT_KEY"} {
		require.Contains(t, names, name)
	}
}

// The schema and the workers' policy allow the same of the Pod Security Standard.
func TestChartHasOneListOfSysctls(t *testing.T) {
	text, err := os.ReadFile("../../chart/templates/controller/newworkerspolicy.yaml")
	require.NoError(t, err)
	var policy, allowed []string
	for _, name := range regexp.MustCompile(`'(kernel|net)\.[a-z0-9_.]+'`).FindAllString(string(text), -1) {
		policy = append(policy, strings.Trim(name, "'"))
	}
	for _, name := range readChart(t).Definitions["restrictedPod"].Properties["sysctls"].Items.Properties["name"].Enum {
		allowed = append(allowed, name.(string))
	}
	require.Equal(t, policy, allowed[:len(allowed)-1])
}
