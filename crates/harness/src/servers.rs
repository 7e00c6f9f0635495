//! An origin process for a benchmark, and nodes at it.

use crate::process::{Folder, Process, free_port, http_get, wait_until};
use anyhow::{Context, Result, ensure};
use larder::client::Node;
use larder::config::{NodeConfig, Size};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// An origin process with a folder of its own; both end with it.
pub struct Origin {
    // Ended before the folder is removed: fields drop in their order.
    process: Process,
    folder: Folder,
    port: u16,
}

fn larder(binary: &Path, words: &[&str]) -> Result<()> {
    let output = Command::new(binary).args(words).output()?;
    ensure!(
        output.status.success(),
        "larder {words:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

impl Origin {
    /// An origin process with certificates for `nodes` nodes, named `node-0`, `node-1`, ….
    ///
    /// # Errors
    /// When it does not come up.
    pub fn start(name: &str, nodes: usize) -> Result<Self> {
        let binary = crate::larder_binary()?;
        let folder = Folder::new(name, false)?;
        let tls = folder.path().join("tls").display().to_string();
        larder(&binary, &["ca", "init", "--tls", &tls])?;
        larder(&binary, &["ca", "issue", "origin", "--role", "origin", "--tls", &tls])?;
        for node in 0..nodes {
            larder(&binary, &["ca", "issue", &format!("node-{node}"), "--tls", &tls])?;
        }
        let (port, http) = (free_port()?, free_port()?);
        let data = folder.path().join("data").display().to_string();
        let arguments = [
            "origin".to_owned(),
            "--data".to_owned(),
            data,
            "--create".to_owned(),
            "--tls".to_owned(),
            tls,
            "--name".to_owned(),
            "origin".to_owned(),
            "--listen".to_owned(),
            format!("127.0.0.1:{port}"),
            "--http".to_owned(),
            format!("127.0.0.1:{http}"),
        ];
        let mut process = Process::start("origin", &binary, &arguments, folder.path())?;
        wait_until("the origin", Duration::from_secs(30), || {
            process.alive()?;
            http_get(http, "/readyz")
        })
        .with_context(|| process.tail())?;
        Ok(Self { process, folder, port })
    }

    /// A node of its own name, linked.
    ///
    /// # Errors
    /// When it cannot be linked.
    pub async fn node(&self, number: usize) -> Result<Node> {
        let tls = self.folder.path().join("tls");
        connect(&tls, &format!("node-{number}"), &self.parent()).await
    }

    /// Its address.
    #[must_use]
    pub fn parent(&self) -> String {
        format!("localhost:{}", self.port)
    }

    /// Where the store is: a rival writes beside it, to the same file system.
    #[must_use]
    pub fn folder(&self) -> PathBuf {
        self.folder.path().to_path_buf()
    }

    /// Fails when it has ended.
    ///
    /// # Errors
    /// With its last words.
    pub fn alive(&mut self) -> Result<()> {
        self.process.alive()
    }
}

/// A node with room for everything that a benchmark makes.
///
/// # Errors
/// When it cannot be linked.
pub async fn connect(tls: &Path, name: &str, parent: &str) -> Result<Node> {
    let mut config = NodeConfig::new(name, tls, parent);
    config.node.memory = Size(4 << 30);
    Ok(Node::connect(config).await?)
}
