package apitest

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// Patch returns the object after a JSON patch (RFC 6902), of which all operations apply or none. It supports test, remove, and
// add except in the middle of a list. hack/fuzz compares it with the API server's own library.
func Patch[T any](object *T, patch []byte) (*T, error) {
	var document any
	var operations []operation
	text, err := json.Marshal(object)
	err = errors.Join(err, json.Unmarshal(text, &document), json.Unmarshal(patch, &operations))
	for _, op := range operations {
		if err == nil {
			document, _, err = op.apply(document, true, strings.Split(op.Path, "/")[1:])
		}
	}
	if err != nil {
		return nil, err
	}
	patched := new(T)
	text, err = json.Marshal(document)
	return patched, errors.Join(err, json.Unmarshal(text, patched))
}

type operation struct {
	Op, Path string
	Value    any
}

// apply applies the operation to what path leads to from value. It returns the value afterwards, and whether there still is one.
func (op operation) apply(value any, exists bool, path []string) (after any, remains bool, err error) {
	if len(path) == 0 {
		switch {
		case op.Op == "add":
			return op.Value, true, nil
		case op.Op == "remove" && exists:
			return nil, false, nil
		case op.Op == "test" && reflect.DeepEqual(value, op.Value):
			return value, exists, nil
		}
		return nil, false, fmt.Errorf("%sing value %s failed", op.Op, op.Path)
	}
	name := strings.NewReplacer("~1", "/", "~0", "~").Replace(path[0])
	switch parent := value.(type) {
	case map[string]any:
		child, exists := parent[name]
		if parent[name], remains, err = op.apply(child, exists, path[1:]); !remains {
			delete(parent, name)
		}
		return parent, true, err
	case []any:
		i := len(parent)
		if name == "-" && op.Op == "add" {
			parent = append(parent, nil)
		} else if i, err = strconv.Atoi(name); err != nil || i < 0 || i >= len(parent) {
			return nil, false, fmt.Errorf("%s %s: no such index", op.Op, op.Path)
		}
		if parent[i], remains, err = op.apply(parent[i], true, path[1:]); !remains {
			parent = slices.Delete(parent, i, i+1)
		}
		return parent, true, err
	}
	return nil, false, fmt.Errorf("%s %s: no such parent", op.Op, op.Path)
}
