// Command chartschema writes the JSON Schema of a Helm chart's values.yaml to standard output.
//
// Types and defaults come from the values. What they cannot say stands above a key, as YAML between two "# @schema" lines, and
// goes into the key's schema. The text after "# --" is the description. The second file goes into the schema of the whole: the
// definitions that the keys refer to, and keys beside the values there are.
//
// But for the second file, this is the notation of github.com/dadav/helm-schema. One thing is stricter here: an unknown keyword is an
// error. A section has no keys but those of the values and of its @schema.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"go.yaml.in/yaml/v3"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "chartschema:", err)
		os.Exit(1)
	}
}

func run(args []string, stdout io.Writer) error {
	if len(args) != 2 {
		return errors.New("usage: chartschema VALUES.YAML DEFINITIONS.YAML")
	}
	values, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	definitions, err := os.ReadFile(args[1])
	if err != nil {
		return err
	}
	root, err := parse(string(definitions))
	if err != nil {
		return fmt.Errorf("%s: %w", args[1], err)
	}
	if err := root.complete(values); err != nil {
		return fmt.Errorf("%s: %w", args[0], err)
	}
	// Encoder and not MarshalIndent: the patterns stay readable without HTML escapes.
	encoder := json.NewEncoder(stdout)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(root)
}

// schema holds the keywords of JSON Schema draft 7 that the chart uses. A struct and not a map, so that a misspelt keyword,
// which a validator would ignore, is refused.
type schema struct {
	Schema               string             `json:"$schema,omitempty" yaml:"-"`
	Ref                  string             `json:"$ref,omitempty" yaml:"$ref"`
	Description          string             `json:"description,omitempty" yaml:"-"`
	Type                 any                `json:"type,omitempty" yaml:"type"` // a name or a list of names
	AllOf                []*schema          `json:"allOf,omitempty" yaml:"allOf"`
	AnyOf                []*schema          `json:"anyOf,omitempty" yaml:"anyOf"`
	OneOf                []*schema          `json:"oneOf,omitempty" yaml:"oneOf"`
	If                   *schema            `json:"if,omitempty" yaml:"if"`
	Then                 *schema            `json:"then,omitempty" yaml:"then"`
	Else                 *schema            `json:"else,omitempty" yaml:"else"`
	Const                any                `json:"const,omitempty" yaml:"const"`
	Enum                 []any              `json:"enum,omitempty" yaml:"enum"`
	Pattern              string             `json:"pattern,omitempty" yaml:"pattern"`
	MinLength            *int               `json:"minLength,omitempty" yaml:"minLength"`
	MaxLength            *int               `json:"maxLength,omitempty" yaml:"maxLength"`
	Minimum              *int               `json:"minimum,omitempty" yaml:"minimum"`
	Maximum              *int               `json:"maximum,omitempty" yaml:"maximum"`
	MinItems             *int               `json:"minItems,omitempty" yaml:"minItems"`
	MaxItems             *int               `json:"maxItems,omitempty" yaml:"maxItems"`
	UniqueItems          bool               `json:"uniqueItems,omitempty" yaml:"uniqueItems"`
	Items                *schema            `json:"items,omitempty" yaml:"items"`
	Contains             *schema            `json:"contains,omitempty" yaml:"contains"`
	MinProperties        *int               `json:"minProperties,omitempty" yaml:"minProperties"`
	Required             []string           `json:"required,omitempty" yaml:"required"`
	Properties           map[string]*schema `json:"properties,omitempty" yaml:"properties"`
	PatternProperties    map[string]*schema `json:"patternProperties,omitempty" yaml:"patternProperties"`
	AdditionalProperties any                `json:"additionalProperties,omitempty" yaml:"additionalProperties"` // a bool or a schema
	Default              any                `json:"default,omitempty" yaml:"-"`
	Definitions          map[string]*schema `json:"definitions,omitempty" yaml:"definitions"`
}

// complete adds to the schema of the whole what the values say.
func (s *schema) complete(values []byte) error {
	var document yaml.Node
	if err := yaml.Unmarshal(values, &document); err != nil {
		return err
	}
	if len(document.Content) != 1 || document.Content[0].Kind != yaml.MappingNode {
		return errors.New("not one YAML mapping")
	}
	s.Schema = "http://json-schema.org/draft-07/schema#" // the one that every Helm 3 knows
	s.Type = "object"
	return addProperties(s, document.Content[0], "")
}

// addProperties adds to s the keys of a mapping. Sections and their keys are required: Helm leaves out what a user sets to null.
func addProperties(s *schema, mapping *yaml.Node, path string) error {
	if s.Properties == nil {
		s.Properties = map[string]*schema{}
	}
	s.AdditionalProperties = false
	for i := 0; i < len(mapping.Content); i += 2 {
		key, value := mapping.Content[i], mapping.Content[i+1]
		keyPath := strings.TrimPrefix(path+"."+key.Value, ".")
		property, err := describe(key, value, keyPath)
		if err != nil {
			return fmt.Errorf("line %d: %s: %w", key.Line, keyPath, err)
		}
		s.Properties[key.Value] = property
		if path != "" || property.Required != nil {
			s.Required = append(s.Required, key.Value)
		}
	}
	return nil
}

// describe makes the schema of one key from its comment and its value.
func describe(key, value *yaml.Node, path string) (*schema, error) {
	s, err := parseBlock(key.HeadComment)
	if err != nil {
		return nil, err
	}
	s.Description = description(key.HeadComment)
	if s.Type == nil && s.Ref == "" {
		types := map[string]string{"!!str": "string", "!!int": "integer", "!!float": "number", "!!bool": "boolean", "!!seq": "array", "!!map": "object"}
		inferred, ok := types[value.Tag]
		if !ok {
			return nil, fmt.Errorf("a value of %s needs a type in its @schema", value.Tag)
		}
		s.Type = inferred
	}

	opened := s.Ref != "" || s.AdditionalProperties != nil // else the properties of a @schema stand beside the keys
	switch {
	case value.Kind == yaml.MappingNode && !opened && len(value.Content) > 0:
		return s, addProperties(s, value, path)
	case value.Kind == yaml.MappingNode && !opened:
		return nil, errors.New("an empty map needs a @schema that says what may be in it")
	case value.Kind == yaml.SequenceNode && s.Items == nil:
		return nil, errors.New("a list needs a @schema with its items")
	case s.Description == "":
		return nil, errors.New(`no description: a comment line that begins with "# --"`)
	}
	return s, value.Decode(&s.Default)
}

// parseBlock reads the YAML between the two "@schema" lines of a comment; without them the schema is empty.
func parseBlock(comment string) (*schema, error) {
	const marker = "@schema"
	var block strings.Builder
	markers := 0
	for line := range strings.Lines(comment) {
		line = strings.TrimRight(strings.TrimPrefix(line, "#"), "\n")
		if strings.TrimSpace(line) == marker {
			markers++
		} else if markers == 1 {
			block.WriteString(line + "\n")
		}
	}
	if markers != 0 && markers != 2 {
		return nil, fmt.Errorf("%d lines %q instead of two", markers, marker)
	}
	return parse(block.String())
}

// parse refuses a keyword that no schema here has.
func parse(text string) (*schema, error) {
	s := &schema{}
	decoder := yaml.NewDecoder(strings.NewReader(text))
	decoder.KnownFields(true)
	if err := decoder.Decode(s); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return s, nil
}

// description joins the lines of a comment from "# --" to its end.
func description(comment string) string {
	_, text, _ := strings.Cut("\n"+comment, "\n# --")
	return strings.Join(strings.Fields(strings.ReplaceAll(text, "\n#", " ")), " ")
}
