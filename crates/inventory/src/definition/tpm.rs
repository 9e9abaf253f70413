//! `[tpm]`.

use serde::{Deserialize, Serialize};

use super::values::{Line, ROOT_KEYS, word};
use crate::toml_reader::{Reader, Table};

/// A trusted platform module, emulated by swtpm. The agent keeps its state, and the state moves with the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tpm {
    /// How the guest reaches the TPM.
    pub model: TpmModel,
    /// Which standard the TPM follows.
    pub version: TpmVersion,
}

/// The interface of a TPM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TpmModel {
    /// Command response buffer, of TPM 2.0 only.
    Crb,
    /// TPM interface specification.
    Tis,
}

/// The version of a TPM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum TpmVersion {
    /// TPM 1.2.
    #[serde(rename = "1.2")]
    V1_2,
    /// TPM 2.0.
    #[serde(rename = "2.0")]
    V2_0,
}

const MODELS: [(&str, TpmModel); 2] = [("crb", TpmModel::Crb), ("tis", TpmModel::Tis)];
const VERSIONS: [(&str, TpmVersion); 2] = [("1.2", TpmVersion::V1_2), ("2.0", TpmVersion::V2_0)];

impl Tpm {
    pub(super) fn write(self, line: &mut Line) {
        line("\n[tpm]\nmodel", word(&MODELS, self.model).into());
        line("version", word(&VERSIONS, self.version).into());
    }
}

pub(super) fn read(reader: &mut Reader, mut table: Table) -> Tpm {
    let version = table.get("version").and_then(|value| value.word(reader, &VERSIONS)).unwrap_or(TpmVersion::V2_0);
    let default = if version == TpmVersion::V2_0 { TpmModel::Crb } else { TpmModel::Tis };
    let value = table.get("model");
    let model = value.as_ref().and_then(|value| value.word(reader, &MODELS)).unwrap_or(default);
    if let Some(value) = value.filter(|_| model == TpmModel::Crb && version == TpmVersion::V1_2) {
        value.report_at(reader, "a TPM 1.2 has no crb interface", "write model = \"tis\", or version = \"2.0\"");
    }
    table.finish(reader, &ROOT_KEYS);
    Tpm { model, version }
}
