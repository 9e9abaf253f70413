//! How far the copy of a guest is.

use skein_api as api;
use skein_api::{CopyRates, PageCounts};
use skein_forecast::Convergence;
use skein_inventory::Route;

use super::{ToApi, same_fields, same_variants};

same_variants!(Route => api::Transport { Auto, Tcp, Compression, Multichannel });
same_fields!(skein_forecast::CopyRates => CopyRates { dirties_bytes_per_s, moves_bytes_per_s });
same_fields!(skein_pages::PageCounts => PageCounts {
    pages, zero_pages, packed_pages, packed_bytes, stored_pages, unchanged_pages, delta_pages, delta_bytes,
    packed_delta_bytes, repaired_pages, missed_pages, other_bytes, late_pages, packing_us, zstd_level, compared_us,
});

impl ToApi for Convergence {
    type Api = api::Convergence;

    fn to_api(&self) -> api::Convergence {
        match self {
            Convergence::FirstRound { seconds } => api::Convergence::FirstRound { seconds: *seconds },
            Convergence::In { seconds } => api::Convergence::In { seconds: *seconds },
            Convergence::Never(rates) => api::Convergence::Never(rates.to_api()),
        }
    }
}

/// Returns what a command says of the way of a guest's memory.
pub(crate) fn route(transport: api::Transport) -> Route {
    match transport {
        api::Transport::Auto => Route::Auto,
        api::Transport::Tcp => Route::Tcp,
        api::Transport::Compression => Route::Compression,
        api::Transport::Multichannel => Route::Multichannel,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transport_means_the_same_at_both_ends_and_has_the_same_name() {
        for transport in api::Transport::ALL {
            assert_eq!(route(transport).to_api(), transport);
            assert_eq!(route(transport).name(), transport.name());
        }
    }
}
