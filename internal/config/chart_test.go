package config

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// schema holds what a test looks at of the chart's values.schema.json.
type schema struct {
	Type        any
	Enum        []any
	If          *schema
	Properties  map[string]*schema
	Definitions map[string]*schema
}

func readChart(t *testing.T) (root schema) {
	text, err := os.ReadFile("../../chart/values.schema.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &root))
	return root
}

// suiteOfChart is a suite of helm-unittest.
const suiteOfChart = "../../chart/tests/refused_test.yaml"

// valueOfChart returns the name under `config` of the chart's value for a flag, and "" where the chart has none.
func valueOfChart(flag string) string {
	switch flag {
	case "node-name", "pod-namespace", "kubeconfig", "peers-service", "dry-run", "once", "worker", "dns-endpoints", "cluster-domain":
		return ""
	case "enable-connectivity-matrix":
		return "peers"
	}
	name := ""
	for i, word := range strings.Split(flag, "-") {
		if i > 0 {
			word = strings.ToUpper(word[:1]) + word[1:]
		}
		name += word
	}
	return name
}

// The chart refuses each value that the agent refuses: otherwise every new node has a crash loop. `make chart-test` runs the suite
// that this test writes with UPDATE=1.
func TestChartRefusesWhatTheAgentRefuses(t *testing.T) {
	values := readChart(t).Properties["config"].Properties

	suite := "# Made from the table of internal/config/config_test.go: UPDATE=1 go test ./internal/config -run TestChart\n" +
		"suite: the chart refuses what the agent refuses\nrelease: {name: kube-node-ready, namespace: kube-system}\n" +
		"capabilities: {majorVersion: 1, minorVersion: 36}\ntemplates: [daemonset.yaml]\ntests:\n"
	for _, flag := range slices.Sorted(maps.Keys(cases)) {
		name := valueOfChart(flag)
		if name == "" {
			continue
		}
		require.Contains(t, values, name, "--%s", flag)
		isList := values[name].Type == "array"
		asItems := func(value string) string {
			if value == "[]" || strings.HasPrefix(value, "[{") { // JSON is YAML
				return value
			}
			var items []string
			for item := range strings.SplitSeq(value, ",") {
				items = append(items, strconv.Quote(strings.TrimSpace(item)))
			}
			return "[" + strings.Join(items, ", ") + "]"
		}
		for _, good := range cases[flag].good {
			if isList && good.value != "" && !strings.Contains(good.value, ",,") {
				suite += fmt.Sprintf("  - it: %q\n    set: {config: {%s: %s}}\n    asserts: [{notFailedTemplate: {}}]\n",
					name+" "+good.value+", which the agent accepts", name, asItems(good.value))
			}
		}
		for _, bad := range cases[flag].bad {
			if flag == "metrics-linger" && bad.value == "" {
				continue // the chart's own default
			}
			value := strconv.Quote(bad.value)
			if _, err := strconv.Atoi(bad.value); err == nil {
				value = bad.value
			}
			if isList {
				value = asItems(bad.value)
			}
			suite += fmt.Sprintf("  - it: %q\n    set: {config: {%s: %s}}\n    asserts: [{failedTemplate: {errorPattern: 'config[./]%s|invalid duration'}}]\n",
				name+" "+regexp.MustCompile(`a{20,}|(a\.){20,}`).ReplaceAllString(bad.value, "a..."), name, value, name)
		}
	}
	if os.Getenv("UPDATE") != "" {
		require.NoError(t, os.WriteFile(suiteOfChart, []byte(suite), 0o600))
	}
	got, err := os.ReadFile(suiteOfChart)
	require.NoError(t, err)
	require.Equal(t, suite, string(got), "stale: run it with UPDATE=1")
}

// extraEnv of the chart replaces no setting, of the agent or the controller.
func TestChartRefusesSettingsAsExtraEnv(t *testing.T) {
	var names []string
	for _, name := range readChart(t).Definitions["variable"].Properties["name"].If.Enum {
		names = append(names, name.(string))
	}
	for _, s := range slices.Concat((&Config{}).settings(), (&Controller{}).settings()) {
		if !s.flagOnly() {
			require.Contains(t, names, s.env())
		}
	}
	for _, name := range []string{"CLUSTER_CA", "KUBERNETES_SERVICE_HOST", "NODE_IP", "VERDICT_KEY"} {
		require.Contains(t, names, name)
	}
}
