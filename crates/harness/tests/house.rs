//! Rules of the house that can be checked by machine: lengths, licences, words that must not be
//! committed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

const FILE_LINES_MAX: usize = 1000;
const FUNCTION_LINES_MAX: usize = 100;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository root")
}

fn tracked(suffix: &str) -> Vec<PathBuf> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .expect("git lists the files");
    assert!(output.status.success(), "git ls-files failed");
    let names = String::from_utf8(output.stdout).expect("file names are UTF-8");
    let files: Vec<_> = names
        .lines()
        .filter(|name| name.ends_with(suffix))
        .map(|name| root().join(name))
        .filter(|path| path.exists())
        .collect();
    assert!(!files.is_empty(), "no {suffix} files found: the check would check nothing");
    files
}

/// Functions as (first line, lines), found by rustfmt's layout: a function ends at the first line
/// that is its own indentation and a closing brace.
fn functions(source: &str) -> Vec<(usize, usize)> {
    let lines: Vec<&str> = source.lines().collect();
    let mut found = Vec::new();
    for (number, line) in lines.iter().enumerate() {
        let body = line.trim_start();
        let indent = &line[..line.len() - body.len()];
        let is_function = begins_function(body);
        if !is_function {
            continue;
        }
        let close = format!("{indent}}}");
        let end = lines[number..].iter().position(|line| {
            *line == close
                || line.ends_with(';')
                    && line.starts_with(indent)
                    && !line[indent.len()..].starts_with(' ')
        });
        found.push((number + 1, end.map_or(1, |end| end + 1)));
    }
    found
}

/// Whether a line begins a function, whatever stands before `fn`: a visibility with a path in it,
/// an ABI, a default.
fn begins_function(line: &str) -> bool {
    let mut rest = line;
    if let Some(after) = rest.strip_prefix("pub") {
        rest = match after.strip_prefix('(') {
            Some(scope) => scope.split_once(')').map_or("", |(_, after)| after),
            None => after,
        };
        if !rest.starts_with(' ') {
            return false;
        }
        rest = rest.trim_start();
    }
    loop {
        let (word, after) = rest.split_once(' ').unwrap_or((rest, ""));
        match word {
            "fn" => return true,
            "async" | "const" | "default" | "extern" | "unsafe" => rest = after,
            abi if abi.starts_with('"') => rest = after,
            _ => return false,
        }
    }
}

#[test]
fn files_and_functions_are_short() {
    let mut long = Vec::new();
    for path in tracked(".rs") {
        let source = std::fs::read_to_string(&path).expect("sources are UTF-8");
        let name = path.strip_prefix(root()).expect("below the root").display().to_string();
        let lines = source.lines().count();
        if lines > FILE_LINES_MAX {
            long.push(format!("{name}: {lines} lines (limit {FILE_LINES_MAX})"));
        }
        for (first, length) in functions(&source) {
            if length > FUNCTION_LINES_MAX {
                long.push(format!(
                    "{name}:{first}: a function of {length} lines (limit {FUNCTION_LINES_MAX})"
                ));
            }
        }
    }
    assert!(long.is_empty(), "too long:\n{}", long.join("\n"));
}

#[test]
fn the_length_check_sees_long_functions() {
    let body = "        let x = 1;\n".repeat(120);
    let source = format!(
        "impl A {{\n    pub(crate) async fn f(\n        a: u8,\n    ) {{\n{body}    }}\n}}\n"
    );
    assert_eq!(functions(&source), vec![(2, 124)]);
}

/// `pub(in crate::cache) fn` was taken for no function: one of any length would have passed.
#[test]
fn the_length_check_sees_functions_of_any_visibility() {
    let heads = [
        "fn f() {",
        "pub fn f() {",
        "pub(crate) fn f<T>() {",
        "pub(super) async fn f() {",
        "pub(in crate::cache) fn f() {",
        "pub(in crate::cache::machine) const fn f() {",
        "extern \"C\" fn f() {",
        "pub const unsafe extern \"C\" fn f() {",
        "default async fn f() {",
    ];
    let body = "    let x = 1;\n".repeat(120);
    for head in heads {
        let source = format!("{head}\n{body}}}\n");
        assert_eq!(functions(&source), vec![(1, 122)], "{head}");
    }
    for other in ["const F: fn() = f;", "pub struct S {", "let f = |x| {", "publish(fn_of);"] {
        assert_eq!(functions(&format!("{other}\n{body}}}\n")), Vec::new(), "{other}");
    }
}

/// Licences a dependency may have, one of them at least where several are offered.
const LICENCES: &[&str] = &[
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "MPL-2.0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
    "0BSD",
];

fn allowed(expression: &str) -> bool {
    // "A AND (B OR C)", "A/B": every AND part needs one allowed OR part.
    let flat = expression.replace('/', " OR ").replace(['(', ')'], "");
    flat.split(" AND ")
        .all(|part| part.split(" OR ").any(|licence| LICENCES.contains(&licence.trim())))
}

#[test]
fn dependencies_have_free_licences_and_are_listed() {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked"])
        .current_dir(root())
        .output()
        .expect("cargo metadata runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value =
        serde_json::from_slice(&output.stdout).expect("cargo metadata is JSON");
    let mut by_licence: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut refused = Vec::new();
    for package in metadata["packages"].as_array().expect("packages") {
        if package["source"].is_null() {
            continue;
        }
        let name = format!(
            "{} {}",
            package["name"].as_str().expect("a name"),
            package["version"].as_str().expect("a version")
        );
        let licence = package["license"].as_str().unwrap_or("none given").to_owned();
        if !allowed(&licence) {
            refused.push(format!("{name}: {licence}"));
        }
        by_licence.entry(licence).or_default().insert(name);
    }
    assert!(refused.is_empty(), "licences not allowed:\n{}", refused.join("\n"));

    let mut text = String::from(
        "# Third-party licences\n\nEvery crate Larder is built with, by licence. Written by \
         `LARDER_REGENERATE=1 cargo test -p larder-harness --test house`.\n",
    );
    for (licence, names) in by_licence {
        text += &format!("\n## {licence}\n\n");
        for name in names {
            text += &format!("- {name}\n");
        }
    }
    text += JEMALLOC;
    let path = root().join("THIRD-PARTY.md");
    if std::env::var_os("LARDER_REGENERATE").is_some() {
        std::fs::write(&path, &text).expect("THIRD-PARTY.md is written");
    }
    let listed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        listed == text,
        "THIRD-PARTY.md is out of date: run LARDER_REGENERATE=1 cargo test -p larder-harness --test house"
    );
}

/// Of the sources in C that a crate brings along under another licence than its own.
const JEMALLOC: &str = r#"
## BSD-2-Clause: jemalloc, in tikv-jemalloc-sys

Copyright (C) 2002-present Jason Evans <jasone@canonware.com>.
All rights reserved.
Copyright (C) 2007-2012 Mozilla Foundation.  All rights reserved.
Copyright (C) 2009-present Facebook, Inc.  All rights reserved.

Redistribution and use in source and binary forms, with or without
modification, are permitted provided that the following conditions are met:
1. Redistributions of source code must retain the above copyright notice(s),
   this list of conditions and the following disclaimer.
2. Redistributions in binary form must reproduce the above copyright notice(s),
   this list of conditions and the following disclaimer in the documentation
   and/or other materials provided with the distribution.

THIS SOFTWARE IS PROVIDED BY THE COPYRIGHT HOLDER(S) ``AS IS'' AND ANY EXPRESS
OR IMPLIED WARRANTIES, INCLUDING, BUT NOT LIMITED TO, THE IMPLIED WARRANTIES OF
MERCHANTABILITY AND FITNESS FOR A PARTICULAR PURPOSE ARE DISCLAIMED.  IN NO
EVENT SHALL THE COPYRIGHT HOLDER(S) BE LIABLE FOR ANY DIRECT, INDIRECT,
INCIDENTAL, SPECIAL, EXEMPLARY, OR CONSEQUENTIAL DAMAGES (INCLUDING, BUT NOT
LIMITED TO, PROCUREMENT OF SUBSTITUTE GOODS OR SERVICES; LOSS OF USE, DATA, OR
PROFITS; OR BUSINESS INTERRUPTION) HOWEVER CAUSED AND ON ANY THEORY OF
LIABILITY, WHETHER IN CONTRACT, STRICT LIABILITY, OR TORT (INCLUDING NEGLIGENCE
OR OTHERWISE) ARISING IN ANY WAY OUT OF THE USE OF THIS SOFTWARE, EVEN IF
ADVISED OF THE POSSIBILITY OF SUCH DAMAGE.
"#;

#[test]
fn every_decision_note_is_indexed() {
    let architecture = std::fs::read_to_string(root().join("docs/ARCHITECTURE.md"))
        .expect("docs/ARCHITECTURE.md is there");
    for entry in std::fs::read_dir(root().join("docs/decisions")).expect("docs/decisions") {
        let name = entry.expect("an entry").file_name().into_string().expect("UTF-8");
        assert!(architecture.contains(&name), "docs/ARCHITECTURE.md does not name {name}");
    }
}
