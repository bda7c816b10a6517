package config

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/validation"
)

// FuzzConfig gives values to any two settings, one by flag and one by environment. Nothing may be
// half accepted: either every problem is named by its flag, or the configuration keeps the bounds,
// and names in it are what the API server takes for names.
func FuzzConfig(f *testing.F) {
	index := make(map[string]uint8)
	settings := new(Config).settings()
	for i, s := range settings {
		index[s.flag] = uint8(i)
	}
	for flag, test := range cases {
		for _, value := range test.good {
			f.Add(index[flag], value.value, index["log-level"], "debug")
		}
		for _, value := range test.bad {
			f.Add(index["max-retries"], "0", index[flag], value.value)
			f.Add(index[flag], value.value, index["taint-effect"], "never")
		}
	}

	f.Add(index["max-retries"], "0", index["require"], "[{},{}]") // two mistakes in one value: one message
	f.Add(index["node-name"], "", index["kubeconfig"], "0")       // required, and no value that is wrong

	f.Fuzz(func(t *testing.T, i uint8, value string, j uint8, variable string) {
		byFlag, byEnv := settings[int(i)%len(settings)], settings[int(j)%len(settings)]
		env := map[string]string{"NODE_NAME": "node1", byEnv.env(): variable}
		got, err := Parse([]string{"--" + byFlag.flag + "=" + value}, lookup(inCluster(env)), new(bytes.Buffer))
		if err != nil {
			var problems UsageError
			require.True(t, errors.As(err, &problems), "%T", err)
			assert.NotEmpty(t, problems)
			assert.LessOrEqual(t, len(problems), 2)
			for _, problem := range problems {
				named := slices.ContainsFunc(settings, func(s *setting) bool { return strings.Contains(problem, "--"+s.flag) })
				assert.True(t, named, problem)
				assert.NotContains(t, problem, "\n")
			}
		}

		check := func(s *setting, valid bool) {
			// The value of byEnv counts unless the flag is the same.
			text, from := "", ""
			switch s.flag {
			case byFlag.flag:
				text, from = value, "--"+s.flag+" "
			case byEnv.flag:
				text, from = variable, s.env()+" (--"+s.flag+") "
			default:
				return
			}
			var problems UsageError
			_ = errors.As(err, &problems)
			// With the value: that a name is required is said of no value.
			complaint := fmt.Sprintf("%s%q: ", from, text)
			complained := slices.ContainsFunc(problems, func(problem string) bool { return strings.HasPrefix(problem, complaint) })
			assert.Equal(t, valid, !complained, "%s %q: %v", s.flag, text, err)
		}
		trimmed := map[string]string{byEnv.flag: strings.TrimSpace(variable)}
		trimmed[byFlag.flag] = strings.TrimSpace(value)
		for _, s := range settings {
			switch v := trimmed[s.flag]; s.flag {
			case "node-name":
				check(s, v == "" || len(validation.IsDNS1123Subdomain(v)) == 0)
			case "pod-namespace":
				check(s, len(validation.IsDNS1123Label(v)) == 0)
			case "taint-key", "verified-label":
				check(s, len(validation.IsQualifiedName(v)) == 0 && ownKey(v) == nil)
			case "taint-value", "verified-label-value":
				check(s, len(validation.IsValidLabelValue(v)) == 0)
			}
		}
		if err != nil {
			return
		}

		between := func(d, lowest, highest time.Duration) bool { return lowest <= d && d <= highest }
		assert.True(t, between(got.CheckTimeout, 100*time.Millisecond, 5*time.Minute))
		assert.True(t, between(got.InitialTimeout, time.Second, 24*time.Hour))
		assert.True(t, between(got.LateTaintWindow, 0, time.Hour))
		assert.True(t, between(got.MetricsLinger, 0, time.Hour))
		assert.True(t, 0 <= got.MaxRetries && got.MaxRetries <= 100)
		assert.True(t, 1024 <= got.MetricsPort && got.MetricsPort <= 65535)
		assert.NotEmpty(t, got.DNSTestDomains)
		for _, list := range [][]string{got.DNSTestDomains, got.NetworkTargets} {
			for _, item := range list {
				assert.NotContains(t, item, ",")
				assert.Equal(t, strings.TrimSpace(item), item)
				assert.NotEmpty(t, item)
			}
		}
		assert.True(t, got.NodeName != "" || got.DryRun)

		// The same by the other way in.
		if byFlag.flag != byEnv.flag && !byFlag.flagOnly() {
			env := map[string]string{"NODE_NAME": got.NodeName, byFlag.env(): value} // must not differ from a flag
			args := []string{}
			if !byEnv.flagOnly() {
				args = append(args, "--"+byEnv.flag+"="+variable)
			}
			again, err := Parse(args, lookup(inCluster(env)), new(bytes.Buffer))
			require.NoError(t, err)
			assert.Equal(t, got, again)
		}
	})
}
