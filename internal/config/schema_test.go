package config

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// schema holds the keywords of JSON Schema draft 7 that the chart uses: another one is an error.
type schema struct {
	Ref                  string `json:"$ref"`
	Type                 any
	AllOf, AnyOf, OneOf  []*schema
	If, Then, Else       *schema
	Const                any
	Enum                 []any
	Pattern              string
	MinLength, MaxLength *int
	Minimum, Maximum     *float64
	MinItems, MaxItems   *int
	UniqueItems          bool
	Items, Contains      *schema
	MinProperties        *int
	Required             []string
	Properties           map[string]*schema
	PatternProperties    map[string]*schema
	AdditionalProperties *schema
	Definitions          map[string]*schema
	Default              any
	Schema, Description  string
	never                bool
}

// UnmarshalJSON also reads the schemas true and false.
func (s *schema) UnmarshalJSON(text []byte) error {
	if s.never = string(text) == "false"; s.never || string(text) == "true" {
		return nil
	}
	text = bytes.Replace(text, []byte(`"$schema"`), []byte(`"schema"`), 1)
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	type plain schema
	return decoder.Decode((*plain)(s))
}

func readChart(t *testing.T) *schema {
	text, err := os.ReadFile("../../chart/values.schema.json")
	require.NoError(t, err)
	root := new(schema)
	require.NoError(t, json.Unmarshal(text, root))
	return root
}

// compiled holds the patterns of one test.
type compiled map[string]*regexp.Regexp

func (c compiled) match(pattern, text string) bool {
	if c[pattern] == nil {
		c[pattern] = regexp.MustCompile(pattern)
	}
	return c[pattern].MatchString(text)
}

// accepts reports whether value, as encoding/json has it, meets s. The definitions are those of root.
func (c compiled) accepts(root, s *schema, value any) bool {
	if s == nil {
		return true
	}
	if s.Ref != "" { // draft 7 ignores what stands beside it
		return c.accepts(root, root.Definitions[strings.TrimPrefix(s.Ref, "#/definitions/")], value)
	}
	meets := func(other *schema) bool { return c.accepts(root, other, value) }
	failing := func(other *schema) bool { return !meets(other) }
	count := 0
	for _, one := range s.OneOf {
		if meets(one) {
			count++
		}
	}
	branch := s.Else
	if s.If != nil && meets(s.If) {
		branch = s.Then
	}
	switch {
	case s.never, s.Type != nil && !hasType(s.Type, value), s.Const != nil && !reflect.DeepEqual(s.Const, value),
		s.Enum != nil && !slices.ContainsFunc(s.Enum, func(one any) bool { return reflect.DeepEqual(one, value) }),
		slices.ContainsFunc(s.AllOf, failing), s.AnyOf != nil && !slices.ContainsFunc(s.AnyOf, meets),
		s.OneOf != nil && count != 1, s.If != nil && !meets(branch):
		return false
	}
	within := func(number float64, least, most *int) bool {
		return (least == nil || number >= float64(*least)) && (most == nil || number <= float64(*most))
	}
	switch v := value.(type) {
	case string:
		return c.match(s.Pattern, v) && within(float64(utf8.RuneCountInString(v)), s.MinLength, s.MaxLength)
	case float64:
		return (s.Minimum == nil || v >= *s.Minimum) && (s.Maximum == nil || v <= *s.Maximum)
	case []any:
		contains := s.Contains == nil
		for i, item := range v {
			isSame := func(other any) bool { return reflect.DeepEqual(item, other) }
			if !c.accepts(root, s.Items, item) || s.UniqueItems && slices.ContainsFunc(v[:i], isSame) {
				return false
			}
			contains = contains || c.accepts(root, s.Contains, item)
		}
		return contains && within(float64(len(v)), s.MinItems, s.MaxItems)
	case map[string]any:
		for key, item := range v {
			property, isKnown := s.Properties[key]
			for pattern, other := range s.PatternProperties {
				if c.match(pattern, key) {
					isKnown = true
					if !c.accepts(root, other, item) {
						return false
					}
				}
			}
			if !isKnown {
				property = s.AdditionalProperties
			}
			if !c.accepts(root, property, item) {
				return false
			}
		}
		isMissing := func(key string) bool { _, found := v[key]; return !found }
		return within(float64(len(v)), s.MinProperties, nil) && !slices.ContainsFunc(s.Required, isMissing)
	}
	return true
}

func hasType(allowed, value any) bool {
	if list, isList := allowed.([]any); isList {
		return slices.ContainsFunc(list, func(one any) bool { return hasType(one, value) })
	}
	number, isNumber := value.(float64)
	switch allowed {
	case "integer":
		return isNumber && number == math.Trunc(number)
	case "number":
		return isNumber
	}
	return map[reflect.Kind]string{reflect.String: "string", reflect.Bool: "boolean", reflect.Slice: "array", reflect.Map: "object"}[reflect.ValueOf(value).Kind()] == allowed
}

// defaults returns the values that the chart has without a value of the user.
func (s *schema) defaults() any {
	if s.Default != nil || s.Required == nil {
		return s.Default
	}
	values := make(map[string]any)
	for key, property := range s.Properties {
		if value := property.defaults(); value != nil {
			values[key] = value
		}
	}
	return values
}
