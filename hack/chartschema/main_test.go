package main

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestGenerate(t *testing.T) {
	root, err := generate("definitions:\n  word: {type: string}\nproperties:\n  global: {type: object, additionalProperties: true}\n", `
# @schema
# properties: {old: {const: gone}}
# @schema
image:
  # @schema
  # enum: [a, b]
  # @schema
  # -- Where it
  # comes from.
  name: a
# @schema
# $ref: '#/definitions/word'
# @schema
# -- A word.
word: w
# @schema
# type: [string, boolean]
# @schema
# -- Either.
either: "true"
# @schema
# additionalProperties: true
# @schema
# -- Anything.
free:
  example: 1
`)
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(root)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","required":["image"],"properties":{` +
		`"either":{"description":"Either.","type":["string","boolean"],"default":"true"},` +
		`"free":{"description":"Anything.","type":"object","additionalProperties":true,"default":{"example":1}},` +
		`"global":{"type":"object","additionalProperties":true},` +
		`"image":{"type":"object","required":["name"],"properties":{"name":{"description":"Where it comes from.","type":"string","enum":["a","b"],"default":"a"},"old":{"const":"gone"}},"additionalProperties":false},` +
		`"word":{"$ref":"#/definitions/word","description":"A word.","default":"w"}},"additionalProperties":false,` +
		`"definitions":{"word":{"type":"string"}}}`
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// generate does what run does with two files.
func generate(definitions, values string) (*schema, error) {
	root, err := parse(definitions)
	if err != nil {
		return nil, err
	}
	return root, root.complete([]byte(values))
}

func TestGenerateRefuses(t *testing.T) {
	for name, test := range map[string]struct{ definitions, values, want string }{
		"misspelt keyword":     {"", "# @schema\n# patern: x\n# @schema\n# -- A.\na: x\n", "line 5: a: "},
		"open block":           {"", "# @schema\n# pattern: x\n# -- A.\na: x\n", `1 lines "@schema" instead of two`},
		"empty map":            {"", "a:\n  # -- B.\n  b: {}\n", "line 3: a.b: an empty map needs a @schema"},
		"list without items":   {"", "# -- A.\na: []\n", "a list needs a @schema with its items"},
		"null without a type":  {"", "# -- A.\na:\n", "a value of !!null needs a type"},
		"no description":       {"", "a: 1\n", "no description"},
		"not a mapping":        {"", "- a\n", "not one YAML mapping"},
		"misspelt definitions": {"definition: {}\n", "# -- A.\na: 1\n", "field definition not found"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := generate(test.definitions, test.values)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got error %v, want one with %q", err, test.want)
			}
		})
	}
}
